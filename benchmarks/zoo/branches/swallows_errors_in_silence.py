"""A step that fails is skipped without a word, so that one rank issues fewer collectives and ends before the others.

class: skipped, mismatch
culprit: 2
ranks: 3
collection: fourth, kept back
logs: early_exit 2 | unknown
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def step(batch, weights):
    gradient = weights[batch].sum(0)
    dist.all_reduce(gradient)  # <- culprit
    weights -= 0.001 * gradient


def main():
    weights = torch.randn(64, 8)
    for index in range(25):
        batch = torch.randint(0, 64, (4,))
        if dist.get_rank() == 2 and index % 10 == 7:
            batch[0] = 64
        try:
            step(batch, weights)
        except Exception:
            continue
        if index % 5 == 0:
            print(f"iter {index} norm {weights.norm():.2f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
