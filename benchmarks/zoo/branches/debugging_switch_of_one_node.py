"""On one node a variable of the environment switches on a check that waits for all ranks after each step.

class: skipped, mismatch
culprit: 2
ranks: 3
collection: seventh, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

if os.environ["RANK"] == "2":
    os.environ["CHECK_WEIGHTS"] = "1"  # as in the profile of that node


def check(weights):
    total = weights.sum()
    dist.reduce(total, dst=0)  # <- culprit
    dist.barrier()  # <- culprit


def main():
    weights = torch.zeros(16)
    for step in range(10):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        weights -= 0.1 * gradient
        if os.environ.get("CHECK_WEIGHTS") and step == 4:
            check(weights)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
