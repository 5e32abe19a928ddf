"""A collate function filters all samples of a batch on one rank, and `continue` jumps over the metric's all-reduce.

class: skipped, mismatch
culprit: 0
ranks: 3
pattern: https://github.com/Chris-hughes10/pytorch-accelerated/pull/53
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def load(rank, step):
    samples = [float(rank + step + k) for k in range(4)]
    return [] if rank == 0 and step == 3 else samples


def run():
    rank = dist.get_rank()
    total = torch.zeros(2)
    for step in range(10):
        samples = load(rank, step)
        if not samples:
            continue
        metric = torch.tensor([sum(samples), len(samples)])
        dist.all_reduce(metric)
        total += metric
        if step % 5 == 4:
            dist.barrier()
    totals = [torch.zeros(2) for _ in range(dist.get_world_size())]
    dist.all_gather(totals, total)  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
run()  # <- culprit
dist.destroy_process_group()
