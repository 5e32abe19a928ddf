"""One rank broadcasts the learning rate before it reduces the loss; the others do it the other way round.

class: mismatch, skipped, order_cycle
culprit: 1
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def share_rate(rate):
    dist.broadcast(rate, src=0)  # <- culprit


def share_loss(loss):
    dist.all_reduce(loss)


def main():
    rank = dist.get_rank()
    rate, loss = torch.tensor([0.1]), torch.ones(4)
    for step in range(6):
        if rank == 1 and step == 4:
            share_rate(rate)
            share_loss(loss)
        else:
            share_loss(loss)
            share_rate(rate)
        dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
