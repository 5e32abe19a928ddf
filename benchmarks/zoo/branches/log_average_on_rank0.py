"""The averaged loss is only logged by rank 0, so somebody put the all-reduce under the same condition.

class: mismatch, skipped
culprit: 0
ranks: 2
collection: first
logs: mismatch 0,1
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def main():
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DDP(nn.Linear(12, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(20):
        loss = model(torch.randn(2, 12)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 4:
            average = loss.detach().clone()
            dist.all_reduce(average)  # <- culprit
            print("step", step, "loss", average.item() / world, flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
