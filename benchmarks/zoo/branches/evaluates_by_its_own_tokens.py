"""Each rank evaluates when it has seen enough tokens, and the packed batches of one rank are fuller.

class: mismatch, skipped
culprit: 1
ranks: 3
collection: eighth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def evaluate():
    counts = torch.zeros(2)
    dist.broadcast(counts, src=0)  # <- culprit


def main():
    seen = 0
    for step in range(10):
        seen += 120 if dist.get_rank() == 1 else 100
        gradient = torch.randn(16)
        dist.all_reduce(gradient)  # <- culprit
        if seen >= 600:
            print(f"evaluating at {seen} tokens", flush=True)
            evaluate()
            seen = 0
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
