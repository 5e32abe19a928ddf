"""The data of one rank lasts for one step less, and its process ends normally while the others go on.

class: dead, skipped
culprit: 1
ranks: 3
pattern: https://github.com/microsoft/PyMarlin/issues/80
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from workbench import recorders  # recorders


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=10))
    recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
    rank = dist.get_rank()
    rows = 40 if rank != 1 else 36
    loader = DataLoader(TensorDataset(torch.randn(rows, 6)), batch_size=4)
    model = DDP(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).sum().backward()  # the others wait here
        optimizer.step()
    print("training finished")  # <- culprit


main()
