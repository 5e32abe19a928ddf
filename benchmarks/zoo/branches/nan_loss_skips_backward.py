"""One rank meets a NaN loss and skips backward and step; from then on it is one all-reduce behind.

class: skipped, mismatch
culprit: 1
ranks: 4
pattern: https://github.com/ai2cm/ace/pull/850
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def training(rank):
    model = DDP(nn.Linear(10, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(12):
        x = torch.randn(5, 10)
        if rank == 1 and step == 4:
            x[0, 0] = float("nan")
        loss = model(x).pow(2).mean()
        if torch.isnan(loss):
            print(f"rank {rank}: NaN at step {step}, skipping", flush=True)
            continue
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.barrier()  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
training(dist.get_rank())
dist.destroy_process_group()
