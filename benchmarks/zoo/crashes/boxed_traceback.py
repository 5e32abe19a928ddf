"""The sampler of one rank requests more samples than exist; a library prints the traceback inside a box.

class: crashed
culprit: 2
ranks: 3
collection: fourth
"""

import os
import random
from datetime import timedelta

import torch
import torch.distributed as dist
from rich.traceback import install

from workbench import recorders  # recorders

install(width=100)


def sample(population, count):
    return random.sample(population, count)  # <- culprit


def main():
    rank = dist.get_rank()
    for step in range(12):
        chosen = sample(range(10), 11 if rank == 2 and step == 6 else 4)
        value = torch.tensor(chosen[:4], dtype=torch.float32)
        dist.all_reduce(value)
        print(f"Epoch 0: {step}/12 loss={1 / (step + 1):.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
