"""Every batch takes long to load, on all ranks.

class: healthy, slow
culprit: none
ranks: 2
collection: first
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def load():
    time.sleep(1.5)
    return torch.randn(5)


def main():
    for _ in range(5):
        batch = load()
        dist.all_reduce(batch)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
