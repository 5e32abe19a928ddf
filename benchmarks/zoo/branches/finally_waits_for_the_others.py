"""A batch fails on one rank, and the `finally` that closes the run waits for all ranks before the error is printed.

class: crashed
culprit: 1
ranks: 3
collection: fourth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def train(rank):
    classes = {"cat": 0, "dog": 1}
    for step in range(20):
        name = "horse" if rank == 1 and step == 9 else "cat"
        label = torch.tensor([float(classes[name])])  # <- culprit
        dist.all_reduce(label)
        print(f"step {step} loss {1 / (step + 1):.3f}", flush=True)


def main():
    try:
        train(dist.get_rank())
    finally:
        print("closing the run", flush=True)
        dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
