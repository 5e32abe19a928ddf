"""A worker of one rank's data loader dies of a bus error, as it does when shared memory is full.

class: crashed, dataloader_worker
culprit: 1
ranks: 3
collection: seventh
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from workbench import recorders  # recorders


class Images(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 32

    def __getitem__(self, index):
        if self.rank == 1 and index == 17:
            os.kill(os.getpid(), signal.SIGBUS)
        return torch.randn(8)


def main():
    loader = DataLoader(Images(dist.get_rank()), batch_size=4, num_workers=1)
    for step, batch in enumerate(loader):  # <- culprit
        total = batch.sum(dim=0)
        dist.all_reduce(total)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
