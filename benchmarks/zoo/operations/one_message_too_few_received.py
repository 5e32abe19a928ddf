"""The sender has five chunks, the receiver expects four and goes on to a barrier.

class: unmatched_p2p, skipped, mismatch
culprit: 1
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/109401
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        for chunk in torch.randn(5, 1 << 14):
            dist.send(chunk, dst=1)
    elif rank == 1:
        buffer = torch.empty(1 << 14)
        for _ in range(4):
            dist.recv(buffer, src=0)
    dist.barrier()  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
