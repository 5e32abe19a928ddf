"""One rank reads from its settings that results are gathered on rank 1; the others gather them on rank 0.

class: mismatch, skipped
culprit: 2
ranks: 3
logs: mismatch | collective_timeout | unknown
collection: eighth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    target = 1 if rank == 2 else 0
    for step in range(6):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step}", flush=True)
    score = torch.ones(4)
    parts = [torch.empty(4) for _ in range(3)] if rank == target else None
    dist.gather(score, parts, dst=target)  # <- culprit
    dist.barrier()
    print("gathered", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
