"""Rank 0 evaluates the bare module for some seconds; the others wait for it in the next step.

class: healthy, slow
culprit: none | 0
ranks: 3
collection: first
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


@torch.no_grad()
def evaluate(module):
    until = time.monotonic() + 5.5
    while time.monotonic() < until:
        module(torch.randn(64, 16))
        time.sleep(0.01)


def main():
    model = DDP(nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.randn(4, 16)).sum().backward()
            optimizer.step()
        if dist.get_rank() == 0 and epoch == 0:
            evaluate(model.module)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
