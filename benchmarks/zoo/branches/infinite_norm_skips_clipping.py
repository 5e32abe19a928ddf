"""The rank whose local gradient is infinite skips the all-reduce of the global norm.

class: skipped, mismatch
culprit: 2
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def clip(gradient, limit):
    squared = gradient.square().sum()
    if torch.isinf(squared):
        return False
    dist.all_reduce(squared)
    gradient *= min(1.0, limit / squared.sqrt().item())
    return True


def main():
    rank = dist.get_rank()
    shard = torch.zeros(64)
    for step in range(8):
        full = torch.randn(64 * dist.get_world_size())
        gradient = torch.empty(64)
        dist.reduce_scatter_tensor(gradient, full)
        if rank == 2 and step == 3:
            gradient[5] = float("inf")
        if clip(gradient, 1.0):
            shard -= 0.1 * gradient
        weights = torch.empty(64 * dist.get_world_size())
        dist.all_gather_into_tensor(weights, shard)  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
