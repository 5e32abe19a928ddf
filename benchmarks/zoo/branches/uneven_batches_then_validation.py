"""The last rank has fewer batches, leaves the training loop first and averages its validation loss.

class: mismatch, skipped
culprit: 2
ranks: 3
pattern: https://github.com/deepspeedai/DeepSpeed/issues/2223
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def batches(rank):
    shard = torch.arange(64)[rank * 24 : (rank + 1) * 24]
    return shard.split(4)


def validate(model):
    with torch.no_grad():
        loss = model.module(torch.ones(4, 8)).mean()
    dist.all_reduce(loss)  # <- culprit
    return loss.item() / dist.get_world_size()


def main():
    rank = dist.get_rank()
    model = DDP(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
    optim = torch.optim.AdamW(model.parameters())
    for epoch in range(3):
        for batch in batches(rank):
            out = model(torch.randn(len(batch), 8))
            loss = F.cross_entropy(out, batch % 2)
            loss.backward()
            optim.step()
            optim.zero_grad()
        print(f"epoch {epoch}: validation loss {validate(model):.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
