"""One rank gives up by `sys.exit` with a message.

class: crashed, dead
culprit: 2
ranks: 3
collection: first
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def check(rank, step):
    if rank == 2 and step == 3:
        sys.exit("disk quota exceeded on /scratch")  # <- culprit


def main():
    for step in range(8):
        check(dist.get_rank(), step)
        dist.all_reduce(torch.ones(4))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
