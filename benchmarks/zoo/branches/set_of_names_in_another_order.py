"""Parameters are reduced in the order of a set of names, which on one rank is another one.

class: mismatch, crashed
culprit: 2
ranks: 3
logs: mismatch 1,2 | mismatch 0,2
collection: eighth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

SIZES = {"embedding": 64, "head": 16, "norm": 8}


def main():
    names = list(SIZES)
    if dist.get_rank() == 2:
        names.reverse()  # as the iteration of a set of strings depends on the seed of its hashes
    for step in range(4):
        warm = torch.ones(4)
        dist.all_reduce(warm)
        print(f"step {step}", flush=True)
    for name in names:
        dist.all_reduce(torch.ones(SIZES[name]))  # <- culprit
    print("averaged", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
