"""One rank finds a newer checkpoint than the others, resumes later and is done earlier.

class: dead, skipped
culprit: 2
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

NEWEST = {0: 100, 1: 100, 2: 103}


def train(start, stop):
    weights = torch.zeros(32)
    for step in range(start, stop):
        gradient = torch.randn(32) / (step + 1)
        dist.all_reduce(gradient)
        weights -= gradient
    return weights


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
    start = NEWEST[dist.get_rank()]
    print("resuming from step", start)
    train(start, 120)
    print("done")  # <- culprit


main()
