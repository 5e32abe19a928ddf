"""One rank builds its index for some seconds before the first collective, in which the others wait.

class: healthy, slow
culprit: none | 2
ranks: 3
collection: first, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def build_index():
    time.sleep(5.5)


def main():
    if dist.get_rank() == 2:
        build_index()
    for _ in range(10):
        dist.all_reduce(torch.randn(6))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
