"""Rank 0 saves a checkpoint and calls a barrier inside the same `if`.

class: mismatch, skipped
culprit: 0
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/54059
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench import recorders  # recorders


def train():
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(1, 9):
        loss = model(torch.randn(16, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step == 5:
            torch.save(model.module.state_dict(), "/dev/null")
            dist.barrier()  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
train()
dist.destroy_process_group()
