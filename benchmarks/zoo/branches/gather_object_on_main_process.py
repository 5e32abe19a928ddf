"""Predictions are gathered only inside `if is_main_process`.

class: mismatch, skipped
culprit: 0
ranks: 3
pattern: https://github.com/huggingface/accelerate/issues/2733
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def predictions(rank):
    return [f"answer {rank}-{k}" for k in range(3)]


def main():
    rank, world = dist.get_rank(), dist.get_world_size()
    for _ in range(4):
        dist.all_reduce(torch.ones(1000))
    mine = predictions(rank)
    if rank == 0:
        everything = [None] * world
        dist.gather_object(mine, everything, dst=0)  # <- culprit
        print(sum(everything, []))
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
