"""The kernel kills one rank, as it does when a node runs out of memory.

class: crashed, dead
culprit: 1
ranks: 3
collection: first
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def main():
    model = DDP(nn.Linear(30, 30))
    for step in range(10):
        model(torch.randn(2, 30)).sum().backward()
        if dist.get_rank() == 1 and step == 6:
            os.kill(os.getpid(), signal.SIGKILL)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
