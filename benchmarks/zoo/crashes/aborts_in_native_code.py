"""A native library of one rank aborts on an assertion.

class: crashed, dead
culprit: 0
ranks: 3
collection: first, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def decode(frame):
    if frame == 4:
        os.write(2, b"decoder.cc:214: assertion failed: width > 0\n")
        os.abort()


def main():
    for frame in range(9):
        if dist.get_rank() == 0:
            decode(frame)
        dist.all_reduce(torch.ones(2))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
