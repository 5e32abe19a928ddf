"""The data set of one rank calls a barrier, which is run in a worker process that has no connections.

class: host_stuck, skipped, mismatch
culprit: 1
ranks: 2
collection: fifth
logs: unknown
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Shards(torch.utils.data.Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        if dist.get_rank() == 1 and index == 8:
            print("shard is not in the cache, waiting for the other ranks", flush=True)
            dist.barrier()  # <- culprit
        return torch.full((4,), float(index))


def main():
    loader = torch.utils.data.DataLoader(Shards(), batch_size=2, num_workers=1)
    for step, batch in enumerate(loader):
        total = batch.sum()
        dist.all_reduce(total)
        print(f"step {step} total {total.item()}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
