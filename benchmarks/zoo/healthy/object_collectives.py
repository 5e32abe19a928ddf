"""Configuration and results travel as Python objects.

class: healthy
culprit: none
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank, world = dist.get_rank(), dist.get_world_size()
    config = [{"rate": 0.1} if rank == 0 else None]
    dist.broadcast_object_list(config, src=0)
    for _ in range(5):
        dist.all_reduce(torch.randn(7))
    results = [None] * world
    dist.all_gather_object(results, {"rank": rank, "text": "x" * (rank + 1) * 50})
    dist.gather_object(results, [None] * world if rank == 0 else None, dst=0)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
