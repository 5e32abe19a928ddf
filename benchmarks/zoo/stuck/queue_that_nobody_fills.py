"""The filter of one rank rejects every sample, so that the queue of batches stays empty for ever.

class: host_stuck
culprit: 2
ranks: 3
collection: sixth, kept back
"""

import os
import queue
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def fill(batches, rank):
    for number in range(9):
        if rank != 2 or number < 4:
            batches.put(torch.full((4,), float(number)))


def main():
    batches = queue.Queue()
    threading.Thread(target=fill, args=(batches, dist.get_rank()), daemon=True).start()
    for step in range(9):
        batch = batches.get()  # <- culprit
        dist.all_reduce(batch)
        print(f"step {step} sum {batch.sum().item()}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
