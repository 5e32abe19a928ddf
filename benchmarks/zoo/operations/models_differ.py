"""One node has an older configuration file, and its model has one layer less.

class: crashed, mismatch, dead
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


def build(layers):
    return nn.Sequential(*[nn.Linear(8, 8) for _ in range(layers)])


def main():
    layers = 3 if dist.get_rank() == 1 else 4
    model = DDP(build(layers))  # <- culprit
    for _ in range(3):
        model(torch.randn(2, 8)).sum().backward()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
