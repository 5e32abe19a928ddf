"""The table of neighbours has a mistake in one row, so that a rank sends its border to itself.

class: crashed, unmatched_p2p
culprit: 2
ranks: 4
collection: seventh
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

NEXT = {0: 1, 1: 2, 2: 2, 3: 0}


def exchange(border):
    rank = dist.get_rank()
    received = torch.empty_like(border)
    request = dist.isend(border, dst=NEXT[rank])  # <- culprit
    dist.recv(received, src=(rank - 1) % 4)
    request.wait()
    return received


def main():
    for step in range(4):
        value = torch.ones(3)
        dist.all_reduce(value)
        print(f"step {step}", flush=True)
    exchange(value)
    print("exchanged", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
