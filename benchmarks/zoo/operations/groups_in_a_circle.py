"""Three overlapping groups, and each rank enters the two that it belongs to in another order.

class: order_cycle
culprit: 0, 1, 2
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/130102
collection: first
logs: collective_timeout
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    pairs = [dist.new_group(pair, timeout=timedelta(seconds=10)) for pair in ([0, 1], [1, 2], [0, 2])]
    dist.all_reduce(torch.ones(1))
    order = {0: (0, 2), 1: (1, 0), 2: (2, 1)}[rank]
    for index in order:
        dist.all_reduce(torch.ones(8), group=pairs[index])  # <- culprit
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
