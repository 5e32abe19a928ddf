"""A counter that is still zero is a float on the rank that saw no positive sample.

class: mismatch
culprit: 1
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def count_correct(rank, epoch):
    if rank == 1 and epoch == 2:
        return torch.tensor([0.0, 12.0])
    return torch.tensor([7, 12])


def main():
    for epoch in range(4):
        dist.all_reduce(torch.randn(128))
        correct = count_correct(dist.get_rank(), epoch)
        dist.all_reduce(correct)  # <- culprit
        print("accuracy", (correct[0] / correct[1]).item(), flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
