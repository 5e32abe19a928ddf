"""The learning-rate schedule has fewer steps than the training: every rank fails in the same step.

class: crashed, dead
culprit: any
ranks: 2
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def main():
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)
    for _ in range(8):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        schedule.step()  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
