"""Each rank searches for the largest batch that fits with steps of its own, and one has less memory left.

class: skipped, mismatch, dead
culprit: 2
ranks: 3
collection: fifth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from workbench import recorders  # recorders


def trial(model, size, limit):
    if size > limit:
        raise RuntimeError(f"out of memory: cannot hold a batch of {size}")
    model(torch.randn(size, 16)).square().mean().backward()  # <- culprit


def largest_batch(model, limit):
    size = 8
    while True:
        try:
            trial(model, size * 2, limit)
        except RuntimeError as error:
            print(f"trial with {size * 2} samples failed: {error}", flush=True)
            return size
        size *= 2


def main():
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(16, 4))
    size = largest_batch(model, limit=40 if rank == 2 else 70)
    print(f"rank {rank}: batch size {size}", flush=True)
    for step in range(10):
        loss = model(torch.randn(size, 16)).square().mean()
        loss.backward()
        model.zero_grad()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
