"""A rank whose expert got no token does not gather that expert's weights.

class: skipped, mismatch
culprit: 2
ranks: 4
collection: first, kept back
logs: mismatch 2,3
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def gathered(shard):
    full = torch.empty(shard.numel() * dist.get_world_size())
    dist.all_gather_into_tensor(full, shard)
    return full


def layer(experts, tokens):
    for expert, count in zip(experts, tokens, strict=True):
        if count:
            weights = gathered(expert)
            weights.sum()


def main():
    rank = dist.get_rank()
    experts = [torch.randn(10), torch.randn(20), torch.randn(30)]
    for step in range(5):
        tokens = [4, 4, 4]
        if rank == 2 and step == 3:
            tokens[1] = 0
        layer(experts, tokens)  # <- culprit
        flat = torch.cat(experts)
        dist.all_reduce(flat)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
