"""The workers of the loader are spawned, and its collate function is a lambda, on every rank.

class: crashed
culprit: any
ranks: 2
collection: eighth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from workbench import recorders  # recorders


def main():
    samples = [torch.randn(4) for _ in range(16)]
    loader = DataLoader(
        samples,
        batch_size=4,
        num_workers=1,
        multiprocessing_context="spawn",
        collate_fn=lambda batch: torch.stack(batch)[:, :2],
    )
    dist.barrier()
    print("epoch 0", flush=True)
    for step, batch in enumerate(loader):  # <- culprit
        dist.all_reduce(batch)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
