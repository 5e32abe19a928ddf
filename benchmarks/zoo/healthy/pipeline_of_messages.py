"""A pipeline of three stages that passes eight microbatches on, and its gradients back.

class: healthy
culprit: none
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for _ in range(8):
        x = torch.randn(10)
        if rank > 0:
            dist.recv(x, src=rank - 1)
        if rank < last:
            dist.send(x, dst=rank + 1)
            dist.recv(x, src=rank + 1)
        if rank > 0:
            dist.send(x, dst=rank - 1)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
