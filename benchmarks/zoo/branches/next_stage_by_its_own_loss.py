"""Each rank switches to longer sequences when its own loss is low enough, and one of them does so earlier.

class: mismatch, crashed
culprit: 2
ranks: 3
collection: seventh
logs: mismatch 1,2 | mismatch 0,2
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank, world = dist.get_rank(), dist.get_world_size()
    length = 64
    for step in range(12):
        loss = 3.0 / (step + 1) - (0.2 if rank == 2 else 0.0)
        if loss < 0.5:
            length = 128
        features = torch.randn(4, length)
        gathered = [torch.empty_like(features) for _ in range(world)]
        dist.all_gather(gathered, features)  # <- culprit
        print(f"step {step} loss {loss:.2f} length {length}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
