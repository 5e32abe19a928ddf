"""Every rank compares its own loss with the best so far; all but one of them think that this epoch is to be saved.

class: mismatch, skipped
culprit: 1
ranks: 4
pattern: https://github.com/pytorch/pytorch/issues/77562
collection: first
logs: mismatch
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

LOSSES = {0: [0.9, 0.7, 0.5], 1: [0.9, 0.7, 0.8], 2: [0.8, 0.7, 0.6], 3: [0.9, 0.5, 0.4]}


def epoch_of_training(weights):
    for _ in range(3):
        gradient = torch.randn_like(weights)
        dist.all_reduce(gradient)  # <- culprit
        weights -= 0.01 * gradient


def save(weights, rank):
    parts = [torch.empty_like(weights) for _ in range(dist.get_world_size())] if rank == 0 else None
    dist.gather(weights, parts, dst=0)


def main():
    rank = dist.get_rank()
    weights, best = torch.randn(50), float("inf")
    for epoch in range(4):
        epoch_of_training(weights)
        loss = LOSSES[rank][min(epoch, 2)]
        if loss < best:
            best = loss
            save(weights, rank)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
