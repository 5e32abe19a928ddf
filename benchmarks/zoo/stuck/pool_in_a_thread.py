"""A pool of processes is joined although one of its tasks never ends.

class: host_stuck
culprit: 2
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/7896
collection: first
"""

import multiprocessing
import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def preprocess(item):
    if item == 3:
        time.sleep(1000)  # <- culprit
    return item * 2


def main():
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    if rank == 2:
        with multiprocessing.get_context("fork").Pool(2) as pool:
            pool.map(preprocess, range(4), chunksize=1)  # <- culprit
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
