"""A filter of too long samples leaves one rank with fewer validation batches than the others.

class: mismatch, skipped, dead
culprit: 2
ranks: 4
pattern: https://github.com/Lightning-AI/pytorch-lightning/issues/20561
collection: second
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader

from workbench import recorders  # recorders


def samples_of(rank):
    lengths = [(rank * 37 + index * 11) % 60 for index in range(24)]
    if rank == 2:
        lengths = [length + 30 for length in lengths]
    return [torch.full((8,), float(length)) for length in lengths if length < 64]


def validate(model, loader):
    for index, batch in enumerate(loader):
        loss = model(batch).square().mean().detach().reshape(1)
        dist.all_reduce(loss)  # <- culprit
        if dist.get_rank() == 0:
            print("validation batch", index, loss.item(), flush=True)


def main():
    model = nn.Linear(8, 1)
    loader = DataLoader(samples_of(dist.get_rank()), batch_size=2)
    for _ in range(3):
        dist.all_reduce(torch.randn(20))
    validate(model, loader)
    dist.barrier()  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
