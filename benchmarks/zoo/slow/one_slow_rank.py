"""One rank is slower in every step, but the training goes on to its end.

class: healthy, slow
culprit: none | 1
ranks: 3
collection: first
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for _ in range(12):
        time.sleep(0.4 if dist.get_rank() == 1 else 0.05)
        dist.all_reduce(torch.randn(6))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
