"""Data loaders with persistent workers over several epochs.

class: healthy
culprit: none
ranks: 2
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from workbench import recorders  # recorders


def main():
    data = TensorDataset(torch.randn(41, 3))
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler, num_workers=1, persistent_workers=True)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (x,) in loader:
            total = x.sum()
            dist.all_reduce(total)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
