"""Rank 0 holds a file lock while it waits for the others in a barrier; the others wait for the lock.

class: host_stuck, order_cycle
culprit: 1, 2 | 0, 1, 2 | 1 | 2
ranks: 3
collection: first
logs: collective_timeout
"""

import fcntl
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def prepare(path):
    with open(path, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # <- culprit
        dist.barrier()  # <- culprit


def main():
    rank = dist.get_rank()
    path = os.path.join(os.environ["OUTPUTS"], "dataset.lock")
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        prepare(path)
    else:
        while not os.path.exists(path):
            pass
        import time

        time.sleep(0.5)
        prepare(path)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
