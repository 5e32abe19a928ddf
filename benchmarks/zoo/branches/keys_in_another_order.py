"""The optimizer states are gathered in the order of a dictionary, which one rank filled in another order after loading.

class: mismatch, crashed, skipped
culprit: 1
ranks: 3
pattern: https://github.com/pytorch/pytorch/pull/114304
collection: second
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def states(rank):
    tensors = {"embedding.weight": torch.randn(50, 8), "norm.weight": torch.randn(8), "head.weight": torch.randn(50, 8)}
    if rank == 1:
        tensors["embedding.weight"] = tensors.pop("embedding.weight")
    return tensors


def average(tensors):
    for tensor in tensors.values():
        dist.all_reduce(tensor)  # <- culprit
        tensor.div_(dist.get_world_size())


def main():
    tensors = states(dist.get_rank())
    for _ in range(3):
        dist.all_reduce(torch.ones(4))
    average(tensors)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
