"""One rank counts its steps on from a checkpoint, so that it leaves out the broadcasts of the warm-up.

class: skipped, mismatch
culprit: 1
ranks: 3
collection: sixth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    resumed = 100 if rank == 1 else 0
    scale = torch.ones(1)
    gradient = torch.zeros(48)
    for step in range(resumed, resumed + 10):
        gradient.normal_()
        dist.all_reduce(gradient)
        if step < 4:
            dist.broadcast(scale, src=0)  # <- culprit
        print(f"step {step} norm {gradient.norm().item():.2f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
