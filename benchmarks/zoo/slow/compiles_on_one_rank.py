"""Rank 0 builds its kernels in the first step, which takes most of the timeout; rank 1 waits for a message from it.

class: healthy, slow
culprit: none | 0
ranks: 2
collection: first
"""

import os
import subprocess
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def build():
    subprocess.run(["sleep", "5.5"], check=True)


def main():
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    for step in range(6):
        if rank == 0:
            if step == 0:
                build()
            dist.send(torch.randn(8), dst=1)
        else:
            dist.recv(torch.empty(8), src=0)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
