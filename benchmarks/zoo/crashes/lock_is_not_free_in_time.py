"""One rank gives up waiting for the lock of a cache, and raises a timeout of its own.

class: crashed
culprit: 1
ranks: 3
collection: sixth, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def lock(seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        time.sleep(0.1)
    raise TimeoutError(f"cache.lock was not released within {seconds} s")  # <- culprit


def main():
    for step in range(8):
        value = torch.ones(16)
        if step == 5 and dist.get_rank() == 1:
            lock(2)
        dist.all_reduce(value)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
