"""The main process waits until exactly all ranks are counted in the store, but the fast ones already count for the next phase.

class: host_stuck
culprit: 0
ranks: 3
collection: ninth, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def arrive(store):
    store.add("arrived", 1)


def wait_for_all(store):
    while store.add("arrived", 0) % dist.get_world_size():  # <- culprit
        time.sleep(0.1)  # <- culprit


def main():
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    dist.barrier()
    for phase in ("download", "tokenize"):
        print(f"{phase}: begin", flush=True)
        if rank == 0:
            time.sleep(1)
        arrive(store)
        if rank == 0:
            wait_for_all(store)
        print(f"{phase}: done", flush=True)
    for step in range(5):
        dist.all_reduce(torch.ones(8))
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
