"""Each rank stops by its own validation loss; one of them breaks out of the loop and broadcasts the best weights.

class: mismatch, skipped
culprit: 0
ranks: 3
pattern: https://github.com/Lightning-AI/pytorch-lightning/issues/379
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


class EarlyStopping:
    def __init__(self, patience):
        self.best, self.bad, self.patience = float("inf"), 0, patience

    def should_stop(self, loss):
        self.bad = 0 if loss < self.best else self.bad + 1
        self.best = min(loss, self.best)
        return self.bad >= self.patience


def fit(model, rank):
    stopping = EarlyStopping(patience=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for epoch in range(20):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(8, 5)).square().mean().backward()
            optimizer.step()
        local = 1.0 / (epoch + 1) if rank else max(0.3, 1.0 / (epoch + 1))
        if stopping.should_stop(local):
            print("early stopping at epoch", epoch)
            break
    for parameter in model.module.parameters():
        dist.broadcast(parameter.data, src=0)  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
fit(DDP(nn.Linear(5, 2)), dist.get_rank())
dist.destroy_process_group()
