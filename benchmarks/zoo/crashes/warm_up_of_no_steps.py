"""The settings have no warm-up, and the schedule divides by its length on every rank.

class: crashed
culprit: any
ranks: 2
collection: eighth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

WARM_UP = 0


def rate(step):
    return 0.1 * min(1.0, (step + 1) / WARM_UP)  # <- culprit


def main():
    for step in range(6):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step} rate {rate(step)}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
