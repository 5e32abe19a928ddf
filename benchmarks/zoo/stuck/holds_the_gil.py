"""An extension of one rank blocks in C and keeps the interpreter's lock.

class: host_stuck
culprit: 1
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/142178
collection: first
"""

import ctypes
import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def tokenize(text):
    pause = ctypes.PyDLL(None).select
    while pause(0, None, None, None, ctypes.byref((ctypes.c_long * 2)(50, 0))):  # <- culprit
        continue
    return text.split()


def main():
    for step in range(5):
        dist.all_reduce(torch.ones(10))
        if step == 2 and dist.get_rank() == 1:
            tokenize("a very long document")


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
