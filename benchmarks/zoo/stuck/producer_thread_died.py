"""A thread that prefetches batches dies of an exception; the training loop waits for its queue.

class: host_stuck
culprit: 1
ranks: 3
collection: first
"""

import os
import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def produce(batches, rank):
    for index in range(10):
        if rank == 1 and index == 6:
            raise ValueError("sample 6 has no label")  # <- culprit
        batches.put(torch.full((4,), float(index)))


def main():
    batches = queue.Queue(maxsize=2)
    threading.Thread(target=produce, args=(batches, dist.get_rank()), daemon=True).start()
    for _ in range(10):
        batch = batches.get()  # <- culprit
        dist.all_reduce(batch)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
