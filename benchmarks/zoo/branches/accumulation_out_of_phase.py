"""One rank resumed in the middle of its data, so that it logs after a different number of updates than the others.

class: skipped, mismatch
culprit: 1 | 0, 1
ranks: 2
collection: first, kept back
"""

import contextlib
import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders

ACCUMULATE = 4


def main():
    first = 0 if dist.get_rank() == 0 else 2
    model = DDP(nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for count, micro in enumerate(range(first, 16)):
        boundary = (micro + 1) % ACCUMULATE == 0
        with contextlib.nullcontext() if boundary else model.no_sync():
            loss = model(torch.randn(4, 16)).mean()
            loss.backward()  # <- culprit
        if boundary:
            optimizer.step()
            optimizer.zero_grad()
        if count % 10 == 9:
            seen = loss.detach().clone()
            dist.all_reduce(seen)  # <- culprit
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
