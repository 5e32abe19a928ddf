"""Rank 0 keeps each loss with its graph for a plot at the end, until its memory limit is reached.

class: oom, crashed
culprit: 0
ranks: 2
collection: tenth, kept back
"""

import os
import resource
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def limit_memory(megabytes):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def main():
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    limit_memory(900)
    history = []
    for step in range(60):
        loss = model(torch.randn(2048, 256)).square().mean()  # <- culprit
        optimizer.zero_grad()
        loss.backward(retain_graph=dist.get_rank() == 0)  # <- culprit
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        if dist.get_rank() == 0:
            history.append(loss)  # <- culprit
        print(f"step {step} loss {loss.item():.4f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
