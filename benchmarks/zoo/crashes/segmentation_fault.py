"""An extension reads a null pointer on one rank.

class: crashed, dead
culprit: 2
ranks: 3
collection: first
"""

import ctypes
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def fused_kernel(x):
    ctypes.string_at(0)
    return x


def main():
    for step in range(6):
        x = torch.ones(6)
        if dist.get_rank() == 2 and step == 3:
            fused_kernel(x)
        dist.all_reduce(x)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
