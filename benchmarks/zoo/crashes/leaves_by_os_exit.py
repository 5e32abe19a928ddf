"""A library ends the process of one rank by `os._exit(7)`.

class: crashed, dead
culprit: 0
ranks: 2
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for step in range(8):
        dist.all_reduce(torch.ones(4))
        if dist.get_rank() == 0 and step == 4:
            os._exit(7)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
