"""One rank gets an interrupt, which the trainer catches to save its state and to end in good order.

class: dead, skipped, early_exit
culprit: 1
ranks: 3
collection: fifth
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def train(rank):
    weights = torch.zeros(64)
    for step in range(14):
        if rank == 1 and step == 7:
            signal.raise_signal(signal.SIGINT)
        gradient = torch.randn(64)
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient
        print(f"step {step} norm {weights.norm().item():.3f}", flush=True)


def main():
    try:
        train(dist.get_rank())
    except KeyboardInterrupt:
        print("Detected KeyboardInterrupt, attempting graceful shutdown ...", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
