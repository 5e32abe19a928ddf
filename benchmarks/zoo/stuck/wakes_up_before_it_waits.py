"""The prefetching thread of one rank notifies before the loop waits, so that the loop waits for ever.

class: host_stuck
culprit: 2
ranks: 3
collection: seventh
"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def prefetch(ready):
    with ready:
        ready.notify()


def main():
    rank = dist.get_rank()
    for step in range(8):
        if rank == 2 and step == 4:
            ready = threading.Condition()
            thread = threading.Thread(target=prefetch, args=(ready,))
            thread.start()
            time.sleep(0.5)
            with ready:
                ready.wait()  # <- culprit
        dist.all_reduce(torch.ones(4))
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
