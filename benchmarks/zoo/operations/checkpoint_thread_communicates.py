"""A thread that saves checkpoints uses the group of the training loop; on one rank the two take turns in another order.

class: mismatch, skipped, order_cycle, crashed
culprit: 2
ranks: 3
pattern: https://github.com/KempnerInstitute/KempnerForge/pull/105
collection: second, kept back
logs: mismatch
"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def save(delay):
    time.sleep(delay)
    sizes = [torch.empty(3) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.ones(3))  # <- culprit


def main():
    rank = dist.get_rank()
    gradients = torch.randn(300)
    for step in range(1, 7):
        if step == 4:
            thread = threading.Thread(target=save, args=(0.0 if rank == 2 else 2.0,))
            thread.start()
            time.sleep(1.0)
        dist.all_reduce(gradients)
        gradients /= dist.get_world_size()
    thread.join()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
