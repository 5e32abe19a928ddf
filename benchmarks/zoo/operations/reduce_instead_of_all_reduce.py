"""One code path still uses reduce where the others use all_reduce.

class: mismatch
culprit: 2
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/77562
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def average(loss, rank):
    if rank == dist.get_world_size() - 1:
        dist.reduce(loss, dst=0)  # <- culprit
    else:
        dist.all_reduce(loss)


def main():
    rank = dist.get_rank()
    for _ in range(4):
        dist.all_reduce(torch.randn(256))
    average(torch.ones(1), rank)
    for _ in range(4):
        dist.all_reduce(torch.randn(256))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
