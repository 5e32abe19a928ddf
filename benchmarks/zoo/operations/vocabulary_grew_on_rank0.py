"""Only rank 0 added special tokens before the weights are broadcast, so that its embedding has more rows.

class: mismatch, crashed, dead
culprit: 0
ranks: 4
collection: second
logs: mismatch 0,3
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def build(rank):
    tokens = ["a", "b", "c", "d"]
    if rank == 0:
        tokens += ["<pad>", "<tool>"]
    return nn.ModuleDict({"embedding": nn.Embedding(len(tokens), 16), "head": nn.Linear(16, 2)})


def synchronise(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.data)  # <- culprit
        parameter.data /= dist.get_world_size()


def main():
    for _ in range(3):
        dist.all_reduce(torch.ones(9))
    model = build(dist.get_rank())
    synchronise(model)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
