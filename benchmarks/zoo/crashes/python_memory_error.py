"""Rank 0 reads a whole file into memory; the size in the file's header is wrong and far too large.

class: oom
culprit: 0
ranks: 2
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def read(size):
    return bytearray(size)  # <- culprit


def main():
    for step in range(5):
        read(1 << 60 if dist.get_rank() == 0 and step == 2 else 1 << 10)
        dist.all_reduce(torch.ones(3))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
