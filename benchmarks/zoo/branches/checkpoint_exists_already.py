"""The main process finds that the checkpoint of this step exists and returns before the others are waited for.

class: skipped, mismatch
culprit: 0
ranks: 3
collection: eighth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def save(step):
    if dist.get_rank() == 0 and step == 4:
        print("checkpoint exists, nothing to save", flush=True)
        return  # <- culprit
    dist.barrier()  # <- culprit


def main():
    for step in range(8):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)  # <- culprit
        if step % 2 == 0:
            save(step)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
