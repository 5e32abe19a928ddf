"""The last stage of a pipeline receives from the first one instead of from its neighbour.

class: unmatched_p2p, mismatch
culprit: 2
ranks: 3
pattern: https://github.com/pytorch/PiPPy/issues/969
collection: first, kept back
logs: unmatched_p2p
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def stage(rank, last):
    activation = torch.randn(64, 64)
    if rank > 0:
        source = rank - 1 if rank != last else 0
        dist.recv(activation, src=source)  # <- culprit
    activation = activation.relu()
    if rank < last:
        dist.send(activation, dst=rank + 1)


def main():
    dist.all_reduce(torch.ones(1))
    for _ in range(3):
        stage(dist.get_rank(), dist.get_world_size() - 1)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
