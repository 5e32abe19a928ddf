"""Two neighbours exchange their borders with blocking sends, and each sends before it receives.

class: order_cycle, unmatched_p2p
culprit: 0, 1
ranks: 2
pattern: https://github.com/NVIDIA/nccl/issues/479
collection: second, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def exchange(border):
    peer = 1 - dist.get_rank()
    other = torch.empty_like(border)
    dist.send(border, dst=peer)  # <- culprit
    dist.recv(other, src=peer)
    return other


def main():
    border = torch.randn(4_000_000)
    for _ in range(3):
        dist.all_reduce(torch.ones(3))
    exchange(border)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
