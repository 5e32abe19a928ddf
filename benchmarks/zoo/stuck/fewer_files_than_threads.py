"""Decoder threads begin each round together, but a rank with fewer files starts fewer threads than are waited for.

class: host_stuck
culprit: 2
ranks: 3
collection: tenth, kept back
"""

import os
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

THREADS = 4


def decode(file, together, decoded):
    together.wait()  # <- culprit
    time.sleep(0.02)
    decoded.append(torch.full((8,), float(len(file))))


def read_round(files):
    together, decoded = threading.Barrier(THREADS), []
    threads = [threading.Thread(target=decode, args=(file, together, decoded), daemon=True) for file in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()  # <- culprit
    return torch.stack(decoded)


def main():
    rank = dist.get_rank()
    files = [f"part-{rank}-{n:03d}.jpg" for n in range(31 if rank == 2 else 32)]
    for first in range(0, len(files), THREADS):
        batch = read_round(files[first : first + THREADS])
        total = batch.sum()
        dist.all_reduce(total)
        print(f"round {first // THREADS} sum {total.item():.0f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
