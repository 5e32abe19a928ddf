"""The progress bar counts on the main process only, and its count decides when to evaluate.

class: skipped, mismatch
culprit: 0
ranks: 3
collection: third
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


class Bar:
    def __init__(self, total, disable):
        self.total, self.disable, self.n = total, disable, 0

    def update(self, loss):
        if self.disable:
            return
        self.n += 1
        sys.stderr.write(
            f"\r{100 * self.n // self.total:3d}%|{'#' * self.n:<12}| {self.n}/{self.total} [loss={loss:.3f}]"
        )


def evaluate(model):
    predictions = model.module(torch.randn(4, 20)).argmax(1)
    every = [torch.zeros_like(predictions) for _ in range(dist.get_world_size())]
    dist.all_gather(every, predictions)  # <- culprit
    return torch.cat(every).float().mean()


def main():
    model = DDP(nn.Linear(20, 5))
    optimizer = torch.optim.AdamW(model.parameters())
    bar = Bar(12, disable=dist.get_rank() != 0)
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 20)), torch.randint(5, (8,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        bar.update(loss.item())
        if bar.n == 6:
            evaluate(model)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
