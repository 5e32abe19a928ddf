"""One rank believes that it is the source of the broadcast.

class: mismatch, skipped, host_stuck, all_arrived
culprit: 1 | 0, 1, 2
ranks: 3
collection: first, kept back
logs: mismatch
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def newest(rank):
    return 1 if rank == 1 else 0


def main():
    weights = torch.randn(1 << 16)
    for _ in range(3):
        dist.all_reduce(weights)
    dist.broadcast(weights, src=newest(dist.get_rank()))  # <- culprit
    dist.all_reduce(weights)  # <- culprit
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
