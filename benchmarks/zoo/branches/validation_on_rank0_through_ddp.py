"""Rank 0 validates alone, but calls the DDP wrapper, whose forward broadcasts the buffers of batch norm.

class: mismatch, skipped
culprit: 0
ranks: 3
pattern: https://discuss.pytorch.org/t/torch-distributed-barrier-hangs-in-ddp/114522
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


@torch.no_grad()
def validate(model):
    model.eval()
    losses = [model(torch.randn(4, 6)).mean().item() for _ in range(3)]  # <- culprit
    model.train()
    return sum(losses) / len(losses)


def main():
    rank = dist.get_rank()
    model = DDP(nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    for epoch in range(3):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).mean().backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch}: {validate(model):.4f}", flush=True)
        dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
