"""The script was written for Slurm and reads a variable that torchrun does not set, on every rank.

class: crashed, startup
culprit: any
ranks: 3
collection: seventh
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def settings():
    return int(os.environ["SLURM_PROCID_OF_STEP"]), int(os.environ["SLURM_NTASKS"])  # <- culprit


def main():
    rank, world = settings()
    dist.all_reduce(torch.ones(rank + 1))
    print(f"{rank} of {world}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
