"""Rank 0 tokenizes the data first, as tutorials recommend, while the others wait in a barrier before it.

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


def tokenize():
    until = time.monotonic() + 6.0
    while time.monotonic() < until:
        sum(len(word) for word in ("a text with words " * 200).split())
        time.sleep(0.005)


def main():
    rank = dist.get_rank()
    if rank != 0:
        dist.barrier()
    if rank == 0:
        tokenize()
        dist.barrier()
    for _ in range(10):
        dist.all_reduce(torch.randn(6))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
