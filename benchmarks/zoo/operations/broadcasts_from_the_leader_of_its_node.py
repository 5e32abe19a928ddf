"""Each node broadcasts its index from its own first rank, but over the group of all ranks.

class: mismatch, order_cycle
culprit: 2, 3 | 0, 1 | 0, 1, 2, 3 | 0, 2
ranks: 4
collection: third, kept back
logs: collective_timeout
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

RANKS_OF_A_NODE = 2


def share_index(rank):
    leader = rank // RANKS_OF_A_NODE * RANKS_OF_A_NODE
    index = torch.arange(1000) if rank == leader else torch.empty(1000, dtype=torch.long)
    dist.broadcast(index, src=leader)  # <- culprit
    return index


def main():
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    index = share_index(rank)
    print("rank", rank, "has an index of", len(index), flush=True)
    for _ in range(3):
        dist.all_reduce(torch.ones(7))
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
