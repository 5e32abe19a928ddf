"""A hand-written loop averages only the gradients that exist; the batches of one rank leave a head without any.

class: mismatch, skipped
culprit: 1
ranks: 3
pattern: https://github.com/KellerJordan/Muon/issues/37
collection: seventh
logs: mismatch 0,1
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def average_gradients(model):
    for parameter in model.parameters():
        if parameter.grad is not None:  # <- culprit
            dist.all_reduce(parameter.grad)  # <- culprit
            parameter.grad /= dist.get_world_size()


def main():
    rank = dist.get_rank()
    model = nn.ModuleDict({"trunk": nn.Linear(8, 8), "boxes": nn.Linear(8, 4), "classes": nn.Linear(8, 10)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(10):
        hidden = model["trunk"](torch.randn(16, 8))
        loss = model["classes"](hidden).square().mean()
        if not (rank == 1 and step >= 4):
            loss = loss + model["boxes"](hidden).square().mean()
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
