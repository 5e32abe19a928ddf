"""Validation begins at half of an epoch; all ranks agree on the shortest epoch, but each halves its own length.

class: mismatch, skipped
culprit: 1
ranks: 3
collection: tenth, kept back
logs: mismatch 0,1 | mismatch 1,2 | mismatch
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from workbench import recorders  # recorders


class Shard(Dataset):
    def __init__(self, rank):
        self.size = 52 if rank == 1 else 40

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((6,), float(index))


def shortest(count):
    tensor = torch.tensor(count)
    dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
    return int(tensor)


def validate():
    hits = torch.tensor([30.0, 40.0, 1.0])
    dist.all_reduce(hits)  # <- culprit
    print(f"validation accuracy {(hits[0] / hits[1]).item():.3f}", flush=True)


def main():
    loader = DataLoader(Shard(dist.get_rank()), batch_size=4)
    steps = shortest(len(loader))
    val_check_interval = int(0.5 * len(loader))  # <- culprit
    for epoch in range(3):
        for step, batch in zip(range(steps), loader, strict=False):
            gradient = batch.flatten()
            dist.all_reduce(gradient)  # <- culprit
            print(f"epoch {epoch} step {step} of {steps} norm {gradient.norm().item():.1f}", flush=True)
            if (step + 1) % val_check_interval == 0:  # <- culprit
                validate()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
