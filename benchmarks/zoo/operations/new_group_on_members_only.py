"""One rank makes only the groups that it belongs to, so that the groups' names differ from the second group on.

class: skipped, mismatch
culprit: 2
ranks: 3
pattern: https://github.com/vllm-project/llm-compressor/pull/2869
collection: first
logs: mismatch
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def make_groups(rank):
    groups = {}
    for members in ((0, 1), (1, 2)):
        if rank == 2 and rank not in members:
            continue
        groups[members] = dist.new_group(list(members), timeout=timedelta(seconds=10))  # <- culprit
    return groups


def main():
    rank = dist.get_rank()
    for _ in range(3):
        dist.all_reduce(torch.ones(16))
    for members, group in make_groups(rank).items():
        if rank in members:
            dist.all_reduce(torch.ones(16), group=group)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
