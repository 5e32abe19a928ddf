"""The head expects another width than the backbone gives, on every rank.

class: crashed, dead
culprit: any
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


def main():
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Linear(12, 2)))
    for _ in range(3):
        model(torch.randn(4, 8)).sum().backward()  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
