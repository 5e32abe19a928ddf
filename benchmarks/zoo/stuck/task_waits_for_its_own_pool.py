"""A task of a pool with one thread waits for a second task of the same pool, which can never begin.

class: host_stuck
culprit: 2
ranks: 3
collection: third
"""

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

pool = ThreadPoolExecutor(max_workers=1)


def decode(path):
    return torch.ones(4)


def load(path):
    if path.endswith(".idx"):
        return pool.submit(decode, path).result()
    return decode(path)


def main():
    rank = dist.get_rank()
    for step in range(10):
        path = "shard.idx" if rank == 2 and step == 5 else "shard.bin"
        sample = pool.submit(load, path).result()  # <- culprit
        dist.all_reduce(sample)
        if rank == 0:
            print(f"Step {step} | loss: {1 / (step + 1):.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
