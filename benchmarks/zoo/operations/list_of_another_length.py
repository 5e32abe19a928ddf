"""The settings are broadcast as a list of objects, and one rank runs a version with one setting less.

class: mismatch, crashed
culprit: 2
ranks: 3
collection: fifth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    value = torch.zeros(4)
    for _ in range(3):
        dist.all_reduce(value)
    settings = [None, None] if rank == 2 else [None, None, None]
    if rank == 0:
        settings = [{"lr": 0.1}, "cosine", 128]
    dist.broadcast_object_list(settings, src=0)  # <- culprit
    print(f"rank {rank}: {settings}", flush=True)
    for step in range(6):
        dist.all_reduce(value)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
