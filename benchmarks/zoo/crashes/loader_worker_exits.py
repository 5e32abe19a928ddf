"""A library ends the process of a data-loader worker of one rank by `os._exit`.

class: crashed, dead
culprit: 2
ranks: 3
collection: second
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
        if self.rank == 2 and index == 21:
            os._exit(1)
        return torch.full((6,), float(index))


def main():
    loader = DataLoader(Images(dist.get_rank()), batch_size=4, num_workers=1)
    for batch in loader:  # <- culprit
        dist.all_reduce(batch.mean(0))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
