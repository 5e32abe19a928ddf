"""One node numbers the ranks of its grid by columns, the other by rows, so that their groups have other members.

class: mismatch, skipped, crashed
culprit: 1
ranks: 4
collection: seventh
logs: mismatch | collective_timeout | unknown
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def groups():
    rank = dist.get_rank()
    rows = [[0, 1], [2, 3]] if rank != 1 else [[0, 2], [1, 3]]
    mine = None
    for members in rows:
        group = dist.new_group(members)  # <- culprit
        if rank in members:
            mine = group
    return mine


def main():
    dist.all_reduce(torch.ones(2))
    group = groups()
    for step in range(5):
        value = torch.ones(8)
        dist.all_reduce(value, group=group)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
