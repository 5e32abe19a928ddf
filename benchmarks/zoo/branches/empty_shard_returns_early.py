"""A rank finds no files in its shard and returns from main before the first step.

class: dead, skipped
culprit: 2
ranks: 3
pattern: https://github.com/GestaltCogTeam/BasicTS/issues/250
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

FILES = ["part-0.bin", "part-1.bin"]


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
    mine = FILES[dist.get_rank() :: dist.get_world_size()]
    dist.barrier()
    if not mine:
        print("nothing to do")
        return  # <- culprit
    weights = torch.zeros(100)
    for name in mine * 10:
        gradient = torch.full((100,), float(len(name)))
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient


main()
