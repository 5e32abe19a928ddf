"""Two ranks exchange boundary values, and both begin with a blocking receive.

class: order_cycle, unmatched_p2p
culprit: 0, 1
ranks: 2
pattern: https://github.com/NVIDIA/nccl/issues/479
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def exchange(halo, peer):
    received = torch.empty_like(halo)
    dist.recv(received, src=peer)  # <- culprit
    dist.send(halo, dst=peer)
    return received


def main():
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    exchange(torch.randn(100), 1 - rank)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
