"""The evaluation set is smaller than the number of ranks: one rank has no sample and does not gather.

class: mismatch, skipped
culprit: 3
ranks: 4
pattern: https://github.com/Chris-hughes10/pytorch-accelerated/pull/53
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset

from workbench import recorders  # recorders


def evaluate(model, loader):
    scores = []
    with torch.no_grad():
        for (x,) in loader:
            score = model.module(x).mean(0)
            gathered = [torch.empty_like(score) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, score)
            scores.append(torch.stack(gathered).mean())
    return scores


def main():
    rank, world = dist.get_rank(), dist.get_world_size()
    data = TensorDataset(torch.randn(3, 4))
    loader = DataLoader(Subset(data, range(rank, len(data), world)), batch_size=1)
    model = DDP(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(2, 4)).sum().backward()  # <- culprit
            optimizer.step()
        evaluate(model, loader)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
