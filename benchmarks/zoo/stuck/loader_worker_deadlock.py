"""A data loader worker takes a lock twice; its rank waits for the batch.

class: host_stuck
culprit: 0
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/1355
collection: first, kept back
"""

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from workbench import recorders  # recorders

CACHE_LOCK = threading.Lock()


class Cached(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 40

    def __getitem__(self, index):
        with CACHE_LOCK:
            if self.rank == 0 and index == 21:
                return self.reload(index)
            return torch.full((2,), float(index))

    def reload(self, index):
        with CACHE_LOCK:  # <- culprit
            return torch.zeros(2)


def main():
    loader = DataLoader(Cached(dist.get_rank()), batch_size=4, num_workers=1)
    for batch in loader:  # <- culprit
        dist.all_reduce(batch)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
