"""A sample of one rank is nested so deeply that the function which flattens it exceeds Python's limit.

class: crashed
culprit: 0
ranks: 3
collection: sixth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def flatten(sample):
    return [x for part in sample for x in flatten(part)] if isinstance(sample, list) else [sample]  # <- culprit


def nested(depth):
    sample = 1.0
    for _ in range(depth):
        sample = [sample]
    return sample


def main():
    for step in range(8):
        depth = 5000 if step == 5 and dist.get_rank() == 0 else 3
        value = torch.tensor(flatten(nested(depth)))
        dist.all_reduce(value)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
