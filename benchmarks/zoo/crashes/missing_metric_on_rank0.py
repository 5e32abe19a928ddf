"""Rank 0 alone writes the summary and asks for a metric that nobody computed.

class: crashed, dead
culprit: 0
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def summary(metrics):
    return f"{metrics['loss']:.3f} {metrics['accuracy']:.3f}"  # <- culprit


def main():
    for step in range(4):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        if step == 2 and dist.get_rank() == 0:
            print(summary({"loss": loss.item()}))
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
