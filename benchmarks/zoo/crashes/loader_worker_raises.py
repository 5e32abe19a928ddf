"""A broken image raises in a data loader's worker of one rank.

class: crashed, dead
culprit: 2
ranks: 3
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from workbench import recorders  # recorders


class Images(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if self.rank == 2 and index == 22:
            raise OSError("image file is truncated (13 bytes not processed)")  # <- culprit
        return torch.ones(3)


def main():
    for batch in DataLoader(Images(dist.get_rank()), batch_size=4, num_workers=1):  # <- culprit
        dist.all_reduce(batch)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
