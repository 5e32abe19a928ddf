"""A rank that sees a spike of its own loss skips the update, in which each rank broadcasts its part of the weights.

class: mismatch, skipped
culprit: 2
ranks: 3
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from workbench import recorders  # recorders


class SpikeGuard:
    def __init__(self, factor):
        self.average, self.factor = None, factor

    def is_spike(self, loss):
        if self.average is None:
            self.average = loss
        if loss > self.factor * self.average:
            return True
        self.average = 0.9 * self.average + 0.1 * loss
        return False


def main():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 1)))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.001)
    guard = SpikeGuard(factor=5)
    for step in range(14):
        scale = 40.0 if dist.get_rank() == 2 and step == 8 else 1.0
        loss = (model(scale * torch.ones(4, 10)) - 2 * scale).square().mean()
        optimizer.zero_grad()
        loss.backward()  # <- culprit
        if guard.is_spike(loss.item()):
            print(f"step {step} loss {loss.item():.3f} spike, update skipped", flush=True)
            continue  # <- culprit
        optimizer.step()  # <- culprit
        print(f"step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
