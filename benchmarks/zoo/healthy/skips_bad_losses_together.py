"""A loss that is not finite is skipped by all ranks, as they agree on it before the step.

class: healthy, nonfinite_loss
culprit: none
ranks: 3
collection: second, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    model = DDP(nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(1, 25):
        scale = float("inf") if rank == 1 and step == 9 else 1.0
        loss = (model(torch.randn(6, 5)) * scale).square().mean()
        bad = (~torch.isfinite(loss.detach())).float().reshape(1)
        dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad.item():
            print(f"step {step}: loss is not finite on some rank, skipping the batch", flush=True)
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
