"""All ranks agree by an all-reduce to stop early.

class: healthy
culprit: none
ranks: 3
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    for epoch in range(100):
        dist.all_reduce(torch.randn(50))
        stop = torch.tensor([1 if rank == 0 and epoch == 7 else 0])
        dist.all_reduce(stop, op=dist.ReduceOp.MAX)
        if stop.item():
            print("stopping after epoch", epoch)
            break


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
