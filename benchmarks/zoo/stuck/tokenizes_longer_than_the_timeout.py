"""The main process tokenizes the data while the others wait in a barrier, and takes longer than the timeout.

class: host_stuck
culprit: 0
ranks: 3
collection: fourth
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def tokenize(documents):
    for done in range(documents):
        time.sleep(0.1)  # <- culprit
        bar = f"\rMap: {done * 100 // documents:3d}%| {done}/{documents} [00:{done // 10:02d}<00:59]"
        print(bar, end="", file=sys.stderr)
    print(file=sys.stderr)


def main():
    if dist.get_rank() == 0:
        tokenize(600)
    dist.barrier()
    for step in range(8):
        dist.all_reduce(torch.ones(4))
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
