"""A broadcast within a group names the main process as its source, which is no member.

class: crashed
culprit: 1, 2
ranks: 3
collection: sixth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    workers = dist.new_group([1, 2])
    value = torch.ones(8)
    for step in range(5):
        dist.all_reduce(value)
        print(f"step {step}", flush=True)
    if dist.get_rank():
        dist.broadcast(value, src=0, group=workers)  # <- culprit
    dist.all_reduce(value)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
