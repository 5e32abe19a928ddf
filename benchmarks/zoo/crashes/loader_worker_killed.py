"""A worker process of a data loader is killed.

class: crashed, dead
culprit: 0
ranks: 2
collection: first, kept back
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset, get_worker_info

from workbench import recorders  # recorders


class Images(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 60

    def __getitem__(self, index):
        if self.rank == 0 and index == 40 and get_worker_info():
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.ones(3)


def main():
    for batch in DataLoader(Images(dist.get_rank()), batch_size=4, num_workers=1):  # <- culprit
        dist.all_reduce(batch)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
