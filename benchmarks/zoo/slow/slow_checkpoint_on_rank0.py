"""Rank 0 writes a checkpoint for most of the timeout while the others wait in a barrier; then all go on.

class: healthy, slow
culprit: none | 0
ranks: 3
collection: first
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def save_checkpoint(weights):
    for _ in range(75):
        torch.save(weights, "/dev/null")
        time.sleep(0.1)


def main():
    weights = torch.randn(100)
    for step in range(10):
        dist.all_reduce(weights)
        if step == 4:
            if dist.get_rank() == 0:
                save_checkpoint(weights)
            dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
