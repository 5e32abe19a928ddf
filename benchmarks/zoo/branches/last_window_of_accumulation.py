"""One rank has too few batches for the last accumulation window, so its last backward pass stays in `no_sync`.

class: skipped, mismatch
culprit: 2
ranks: 3
pattern: https://github.com/huggingface/accelerate/issues/226
collection: second, kept back
"""

import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders

WINDOW = 4


def epoch(model, optimizer, batches):
    for index, batch in enumerate(batches, 1):
        synchronise = index % WINDOW == 0
        with contextlib.nullcontext() if synchronise else model.no_sync():
            (model(batch).square().mean() / WINDOW).backward()  # <- culprit
        if synchronise:
            optimizer.step()
            optimizer.zero_grad()


def main():
    rank = dist.get_rank()
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [torch.randn(4, 8) for _ in range(7 if rank == 2 else 8)]
    for number in range(2):
        epoch(model, optimizer, batches)
        samples = torch.tensor([float(len(batches))])
        dist.all_reduce(samples)  # <- culprit
        print("epoch", number, "samples", samples.item(), flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
