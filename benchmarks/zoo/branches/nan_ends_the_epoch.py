"""One rank gets a loss that is not finite, ends its epoch early and continues with the validation.

class: mismatch, skipped
culprit: 1
ranks: 4
collection: second
"""

import math
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def train_one_epoch(model, optimizer, loader):
    for data, target in loader:
        loss = nn.functional.mse_loss(model(data), target)
        if not math.isfinite(loss.item()):
            print(f"rank {dist.get_rank()}: loss is {loss.item()}, leaving the epoch", flush=True)
            return False  # <- culprit
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return True


def validate(model, loader):
    total = torch.zeros(2)
    with torch.no_grad():
        for data, target in loader:
            total += torch.tensor([nn.functional.mse_loss(model.module(data), target).item(), 1.0])
    dist.all_reduce(total)  # <- culprit
    return (total[0] / total[1]).item()


def main():
    torch.manual_seed(0)
    model = DDP(nn.Linear(6, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loader = [(torch.randn(8, 6), torch.randn(8, 2)) for _ in range(9)]
    if dist.get_rank() == 1:
        loader[5] = (torch.full((8, 6), float("inf")), loader[5][1])
    for _ in range(3):
        train_one_epoch(model, optimizer, loader)
        print("validation", validate(model, loader[:2]), flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
