"""One rank counts fewer steps than the others and calls `sys.exit(0)`; the others wait for it.

class: dead, skipped
culprit: 2
ranks: 3
collection: second, kept back
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    limit = 5 if dist.get_rank() == 2 else 8
    tokens = torch.zeros(1)
    for step in range(1, 9):
        if step > limit:
            print("reached the token budget, leaving", flush=True)
            sys.exit(0)  # <- culprit
        tokens += 1024
        dist.all_reduce(torch.randn(40))
        print("step", step, "tokens", int(tokens), flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
