"""The middle stage of a pipeline was started with fewer microbatches than its neighbours.

class: unmatched_p2p, skipped, mismatch
culprit: 1
ranks: 3
pattern: https://github.com/pytorch/torchtitan/issues/775
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def forward(rank, last, microbatches):
    for _ in range(microbatches):
        hidden = torch.randn(32, 32)
        if rank > 0:
            dist.recv(hidden, src=rank - 1)
        if rank < last:
            dist.send(hidden @ hidden, dst=rank + 1)


def main():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    dist.all_reduce(torch.ones(1))
    forward(rank, last, microbatches=3 if rank == 1 else 4)
    gradient = torch.ones(32, 32)
    dist.all_reduce(gradient)  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
