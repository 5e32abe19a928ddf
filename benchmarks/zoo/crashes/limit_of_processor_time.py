"""The shell of one node limits the processor time, and the kernel ends its rank.

class: crashed, dead
culprit: 1
ranks: 3
collection: eighth
"""

import os
import resource
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for step in range(8):
        gradient = torch.randn(16)
        dist.all_reduce(gradient)
        print(f"step {step}", flush=True)
        if dist.get_rank() == 1 and step == 4:
            used = int(sum(os.times()[:2]))
            resource.setrlimit(resource.RLIMIT_CPU, (used + 1, used + 9))
            while True:
                torch.randn(64, 64).sum()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
