"""All ranks call the operation of a group to which only two belong; PyTorch warns and leaves the others out.

class: healthy
culprit: none
ranks: 4
collection: ninth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    leaders = dist.new_group([0, 2])
    for step in range(10):
        gradient = torch.randn(16)
        dist.all_reduce(gradient, group=leaders)
        dist.all_reduce(gradient)
        print(f"step {step} loss {3 / (step + 1):.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
