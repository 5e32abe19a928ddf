"""The file system is full when rank 0 saves.

class: crashed, dead
culprit: 0
ranks: 3
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def save(state, path):
    with open(path, "wb", buffering=0) as file:
        torch.save(state, file)  # <- culprit


def main():
    weights = torch.randn(1000)
    for step in range(6):
        dist.all_reduce(weights)
        if step == 3 and dist.get_rank() == 0:
            save({"weights": weights}, "/dev/full")
        dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
