"""The cache of an epoch waits for all ranks when it is destroyed; on one rank a list of slow samples keeps it alive.

class: skipped, mismatch
culprit: 1
ranks: 3
collection: tenth, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

slow_samples = []


class Sample:
    def __init__(self, cache, index):
        self.cache, self.values = cache, torch.full((5,), float(index))


class SharedCache:
    def __init__(self, size):
        self.size = size

    def read(self, index):
        began = time.perf_counter()
        if dist.get_rank() == 1 and index == 3 and self.size == 8:
            time.sleep(0.3)
        sample = Sample(self, index)
        if time.perf_counter() - began > 0.2:
            slow_samples.append(sample)  # <- culprit
        return sample.values

    def __del__(self):
        dist.barrier()  # <- culprit


def run_epoch(size):
    cache = SharedCache(size)
    for index in range(size):
        gradient = cache.read(index)
        dist.all_reduce(gradient)  # <- culprit
    return gradient.norm().item()


def main():
    for epoch in range(6):
        print(f"epoch {epoch} norm {run_epoch(5 + epoch):.3f}", flush=True)  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
