"""Gradients are accumulated over four micro-steps under `no_sync`, on all ranks alike.

class: healthy
culprit: none
ranks: 2
collection: first
"""

import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def main():
    model = DDP(nn.Linear(5, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for micro in range(32):
        last = micro % 4 == 3
        with contextlib.nullcontext() if last else model.no_sync():
            model(torch.randn(2, 5)).sum().backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
