"""A thread of one rank counts tokens in plain Python all the time, so that the training thread gets less of the interpreter.

class: healthy, slow, straggler
culprit: none | 1
ranks: 3
collection: tenth, kept back
"""

import os
import threading
from collections import Counter
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

finished = threading.Event()


def count_tokens():
    counts = Counter()
    while not finished.is_set():
        for token in range(50_000):
            counts[token * 7919 % 1000] += 1


def tokenize(step):
    total = 0
    for position in range(600_000):
        total += (position * step) % 97
    return torch.tensor([float(total)])


def main():
    if dist.get_rank() == 1:
        threading.Thread(target=count_tokens, name="statistics", daemon=True).start()
    for step in range(25):
        batch = tokenize(step)
        dist.all_reduce(batch)
        print(f"step {step} tokens {batch.item():.0f}", flush=True)
    finished.set()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
