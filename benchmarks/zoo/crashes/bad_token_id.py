"""A token id beyond the vocabulary on one rank.

class: crashed, dead
culprit: 1
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def batch(rank, step):
    tokens = torch.randint(0, 100, (2, 8))
    if rank == 1 and step == 5:
        tokens[0, 0] = 100
    return tokens


def main():
    model = DDP(nn.Sequential(nn.Embedding(100, 8), nn.Linear(8, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        model(batch(dist.get_rank(), step)).square().mean().backward()  # <- culprit
        optimizer.step()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
