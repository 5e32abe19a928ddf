"""The ranks end without taking leave of their group, and Python warns of semaphores and threads that were left.

class: healthy
culprit: none
ranks: 2
collection: seventh
"""

import multiprocessing
import os
import sys
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for step in range(10):
        dist.all_reduce(torch.ones(4))
        print(f"step {step}", flush=True)
    kept = [multiprocessing.Semaphore() for _ in range(3)]
    warnings.warn(f"resource_tracker: There appear to be {len(kept)} leaked semaphore objects to clean up at shutdown")
    print("Exception ignored in: <function Loader.__del__ at 0x7f00>", file=sys.stderr)
    print("Traceback (most recent call last):", file=sys.stderr)
    print('  File "loader.py", line 41, in __del__', file=sys.stderr)
    print("    self.pool.terminate()", file=sys.stderr)
    print("AttributeError: 'NoneType' object has no attribute 'terminate'", file=sys.stderr)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
