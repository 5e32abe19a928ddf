"""One rank gathers into buffers of another type than its own tensor has.

class: crashed, mismatch
culprit: 2
ranks: 3
collection: sixth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    own = torch.full((6,), float(rank))
    for step in range(8):
        kind = torch.float64 if rank == 2 and step == 5 else torch.float32
        parts = [torch.empty(6, dtype=kind) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own)  # <- culprit
        print(f"step {step}: {[part[0].item() for part in parts]}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
