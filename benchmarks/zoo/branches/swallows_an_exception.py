"""One rank fails in the middle of a step, logs a warning and goes on with the next batch.

class: skipped, mismatch
culprit: 1
ranks: 3
collection: second
"""

import logging
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

logging.basicConfig(level=logging.INFO)


def step(rank, index, weights):
    tokens = torch.arange(16) + (1000 if rank == 1 and index == 7 else 0)
    gradient = weights[tokens].sum(0)
    dist.all_reduce(gradient)  # <- culprit
    weights -= 0.01 * gradient
    norm = weights.norm().reshape(1)
    dist.broadcast(norm, src=0)
    return norm.item()


def main():
    rank = dist.get_rank()
    weights = torch.randn(100, 12)
    for index in range(12):
        try:
            step(rank, index, weights)
        except IndexError as error:
            logging.warning("batch %d is broken, skipping it: %s", index, error)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
