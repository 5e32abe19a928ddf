"""A model with synchronized batch norm layers, written for GPUs, is tried on a machine without one.

class: crashed
culprit: any
ranks: 2
pattern: https://github.com/pytorch/pytorch/issues/48988
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench import recorders  # recorders


def build_model():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5))
    model(torch.randn(2, 3, 8, 8))
    return DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(model))  # <- culprit


def main():
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(6):
        logits = model(torch.randn(4, 3, 8, 8))
        loss = nn.functional.cross_entropy(logits, torch.randint(5, (4,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
