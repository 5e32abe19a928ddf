"""Losses per sample are summed over ranks; the last batch of one rank is smaller.

class: mismatch
culprit: 2
ranks: 3
pattern: https://github.com/criteo/tf-yarn/pull/79
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    data = torch.randn(30 if rank < 2 else 27)
    for batch in data.split(10):
        losses = batch.square()
        dist.all_reduce(losses)  # <- culprit
        print(losses.mean().item(), flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
