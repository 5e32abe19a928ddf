"""The ranks have different numbers of batches, and DDP's join context takes care of it.

class: healthy
culprit: none
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def main():
    model = DDP(nn.Linear(5, 5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Join([model]):
        for _ in range(5 + 3 * dist.get_rank()):
            optimizer.zero_grad()
            model(torch.randn(2, 5)).sum().backward()
            optimizer.step()
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
