"""After the last collective one rank still writes its results for some seconds.

class: healthy, slow
culprit: none | 0
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
    for _ in range(10):
        dist.all_reduce(torch.randn(6))
    if dist.get_rank() == 0:
        time.sleep(6)
        print("results written")


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
