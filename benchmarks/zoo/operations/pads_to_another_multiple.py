"""Flat gradients are padded to a multiple that on one node is another one.

class: mismatch, crashed
culprit: 2
ranks: 4
logs: mismatch 1,2 | mismatch 2,3
collection: eighth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def padded(flat, multiple):
    return torch.nn.functional.pad(flat, (0, -len(flat) % multiple))


def main():
    multiple = 12 if dist.get_rank() == 2 else 8
    for step in range(4):
        loss = torch.ones(1)
        dist.all_reduce(loss)
        print(f"step {step}", flush=True)
    flat = padded(torch.randn(30), multiple)
    dist.all_reduce(flat)  # <- culprit
    print("reduced", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
