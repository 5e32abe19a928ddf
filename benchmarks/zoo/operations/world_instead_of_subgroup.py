"""One rank forgets the group argument and reduces over the whole world.

class: mismatch, skipped, order_cycle
culprit: 3
ranks: 4
collection: first
logs: mismatch
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    mine = groups[rank // 2]
    for step in range(6):
        partial = torch.randn(20)
        if rank == 3 and step == 3:
            dist.all_reduce(partial)  # <- culprit
        else:
            dist.all_reduce(partial, group=mine)
        norm = partial.norm()
        dist.all_reduce(norm)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
