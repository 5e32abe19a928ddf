"""Rank 0 uploads its checkpoint by a command that never returns; the others wait in the next step.

class: host_stuck, slow
culprit: 0
ranks: 3
collection: first, kept back
"""

import os
import subprocess
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def upload(step):
    subprocess.run(["sleep", "100"], check=True)  # <- culprit


def main():
    for step in range(10):
        gradient = torch.randn(40)
        dist.all_reduce(gradient)
        if step == 4 and dist.get_rank() == 0:
            upload(step)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
