"""The sweep hands a finished run out once more: rank 0, which alone asks the tracker, has nothing to do and returns.

class: dead, skipped
culprit: 0
ranks: 3
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench import recorders  # recorders


class Tracker:
    """The main process talks to the server; the other processes have an empty one."""

    def __init__(self, name, is_main):
        self.summary = {"run-17": {"status": "finished", "loss": 0.31}}.get(name, {}) if is_main else {}

    def is_finished(self):
        return self.summary.get("status") == "finished"


def train(name):
    tracker = Tracker(name, dist.get_rank() == 0)
    if tracker.is_finished():
        print(f"{name} is already finished, loss {tracker.summary['loss']}", flush=True)
        return  # <- culprit
    model = DistributedDataParallel(nn.Linear(6, 2))  # <- culprit
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 6)).square().mean()
        loss.backward()  # <- culprit
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"{name} step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
for name in ("run-16", "run-17"):
    train(name)  # <- culprit
dist.destroy_process_group()
