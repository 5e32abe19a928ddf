"""The data of one rank is exhausted, which the pipeline tells by an exception of its own.

class: crashed
culprit: 1
ranks: 3
collection: fifth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class EndOfShards(Exception):
    pass


def read(step, rank):
    if rank == 1 and step == 5:
        raise EndOfShards("shard 3 of 3 is exhausted")  # <- culprit
    return torch.full((4,), float(step))


def main():
    for step in range(9):
        batch = read(step, dist.get_rank())
        dist.all_reduce(batch)
        print(f"step {step} sum {batch.sum().item()}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
