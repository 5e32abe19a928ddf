"""One rank stops at its first NaN by an assertion; the others are in backward.

class: crashed, dead
culprit: 2
ranks: 3
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


def main():
    rank = dist.get_rank()
    model = DDP(nn.Linear(4, 4))
    for step in range(9):
        scale = float("inf") if rank == 2 and step == 5 else 1.0
        loss = (model(torch.randn(2, 4)) * scale).sum() * 0.0
        assert torch.isfinite(loss), f"loss is {loss.item()}"  # <- culprit
        loss.backward()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
