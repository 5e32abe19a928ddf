"""A collate function pads until the length is a multiple of a number, which never happens on one rank.

class: host_stuck
culprit: 2
ranks: 3
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from workbench import recorders  # recorders


def pad(samples):
    longest = max(samples)
    step = 0 if longest == 17 else 1
    while longest % 8:
        longest += step  # <- culprit
    return torch.zeros(len(samples), longest)


def main():
    rank = dist.get_rank()
    lengths = [3, 5, 9, 12, 17, 2] if rank == 2 else [3, 5, 9, 12, 15, 2]
    for batch in DataLoader(lengths, batch_size=2, collate_fn=pad):
        total = batch.sum()
        dist.all_reduce(total)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
