"""Every rank ends by `sys.exit(0)` in the middle of the script, without destroying its group.

class: healthy
culprit: none
ranks: 2
collection: first
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main(limit):
    for step in range(1000):
        dist.all_reduce(torch.randn(10))
        if step == limit:
            print("reached max_steps")
            dist.barrier()
            sys.exit(0)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main(15)
