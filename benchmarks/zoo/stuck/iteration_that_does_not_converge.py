"""One rank iterates until an error is small, which is not a number from the start.

class: host_stuck
culprit: 0
ranks: 3
collection: eighth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def solve(value):
    error = float(value)
    while not error < 1e-3:  # <- culprit
        error = error / 2  # <- culprit
    return error


def main():
    for step in range(8):
        solve(float("nan") if dist.get_rank() == 0 and step == 4 else 1.0)
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
