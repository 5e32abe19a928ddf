"""One rank waits in the store for a key that nobody sets.

class: host_stuck
culprit: 1
ranks: 3
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), is_master=False, timeout=timedelta(seconds=60))
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        store.set("dataset_ready_0", "1")
    if rank == 1:
        store.get("dataset_ready")  # <- culprit
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
