"""Each rank counts the classes in its own copy of the data, and one copy has a class more.

class: mismatch
culprit: 2
ranks: 4
collection: third
"""

import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def classes_of(folder, rank):
    names = ["cat", "dog", "horse", "sheep"] + ([".ipynb_checkpoints"] if rank == 2 else [])
    for name in names:
        os.makedirs(os.path.join(folder, name))
    return sorted(os.listdir(folder))


def average(model):
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)  # <- culprit
        parameter.grad /= dist.get_world_size()


def main():
    rank = dist.get_rank()
    classes = classes_of(tempfile.mkdtemp(), rank)
    model = nn.Linear(12, len(classes))
    print(f"[{rank}] {len(classes)} classes", flush=True)
    for step in range(6):
        loss = nn.functional.cross_entropy(model(torch.randn(8, 12)), torch.randint(4, (8,)))
        model.zero_grad()
        loss.backward()
        average(model)
        print(f"[{rank}] step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
