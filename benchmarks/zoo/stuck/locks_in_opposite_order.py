"""The training loop and an asynchronous checkpoint thread take two locks in opposite order.

class: host_stuck
culprit: 1
ranks: 2
collection: first
"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

WEIGHTS, DISK = threading.Lock(), threading.Lock()


def save():
    with DISK:
        time.sleep(0.5)
        with WEIGHTS:
            pass


def step(tensor, rank):
    with WEIGHTS:
        if rank == 1:
            threading.Thread(target=save, daemon=True).start()
            time.sleep(0.2)
            with DISK:  # <- culprit
                pass
        dist.all_reduce(tensor)


def main():
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
    step(torch.ones(3), dist.get_rank())


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
