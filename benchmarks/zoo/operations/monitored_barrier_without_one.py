"""A monitored barrier after the data is prepared; one rank is still busy with its part.

class: host_stuck, slow
culprit: 2
ranks: 3
pattern: https://github.com/pytorch/pytorch/pull/55010
collection: first
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def prepare(rank):
    if rank == 2:
        time.sleep(60)  # <- culprit


def main():
    dist.all_reduce(torch.ones(1))
    prepare(dist.get_rank())
    dist.monitored_barrier(timeout=timedelta(seconds=10))
    dist.all_reduce(torch.ones(1))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
