"""A training that is looked at while it goes on.

class: healthy, unknown
culprit: none
ranks: 2
looked_at_after: 4
collection: first
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for step in range(1000):
        time.sleep(0.05)
        dist.all_reduce(torch.randn(6))
        if dist.get_rank() == 0 and step % 20 == 0:
            print("step", step, flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
