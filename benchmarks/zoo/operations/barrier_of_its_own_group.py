"""One rank waits in the group of its node, the others in the group of all.

class: mismatch, skipped
culprit: 3
ranks: 4
collection: eighth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    nodes = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    for step in range(6):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step}", flush=True)
    if rank == 3:
        dist.barrier(group=nodes[1])  # <- culprit
    else:
        dist.barrier()  # <- culprit
    print("saved", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
