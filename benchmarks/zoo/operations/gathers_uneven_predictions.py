"""Predictions are gathered without padding, and one rank has fewer.

class: mismatch, crashed
culprit: 2
ranks: 3
collection: first
logs: mismatch 1,2
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def gather(predictions):
    parts = [torch.empty_like(predictions) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, predictions)  # <- culprit
    return torch.cat(parts)


def main():
    rank = dist.get_rank()
    for _ in range(3):
        gather(torch.randn(16, 4))
    gather(torch.randn(16 if rank < 2 else 11, 4))
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
