"""Somebody left a breakpoint that only rank 0 reaches.

class: host_stuck
culprit: 0
ranks: 2
collection: first, kept back
"""

import os
import pdb
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def inspect_gradient(gradient):
    pdb.Pdb(stdin=sys.stdin).set_trace()
    return gradient.norm()  # <- culprit


def main():
    for step in range(6):
        gradient = torch.randn(40)
        dist.all_reduce(gradient)
        if step == 3 and dist.get_rank() == 0:
            inspect_gradient(gradient)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
