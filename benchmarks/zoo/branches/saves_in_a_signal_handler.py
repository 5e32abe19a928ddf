"""The scheduler's warning signal reaches one rank only, whose handler saves a checkpoint behind a barrier.

class: skipped, mismatch
culprit: 1
ranks: 3
collection: third, kept back
"""

import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def save_and_go_on(number, frame):
    print("caught SIGUSR1, saving before the time limit", flush=True)
    dist.barrier()  # <- culprit
    print("saved", flush=True)


def main():
    signal.signal(signal.SIGUSR1, save_and_go_on)
    for step in range(30):
        loss = torch.rand(1)
        if dist.get_rank() == 1 and step == 11:
            os.kill(os.getpid(), signal.SIGUSR1)
        dist.all_reduce(loss)
        print(f"step={step} loss={loss.item() / 3:.4f}", flush=True)
        time.sleep(0.02)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
