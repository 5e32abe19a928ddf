"""Rank 0 asks on the terminal whether to overwrite a checkpoint, and nobody answers.

class: host_stuck
culprit: 0
ranks: 3
collection: second
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def confirm(path):
    answer = input(f"{path} exists, overwrite? [y/n] ")  # <- culprit
    return answer.strip().lower() == "y"


def main():
    weights = torch.randn(16)
    for _ in range(5):
        dist.all_reduce(weights)
    if dist.get_rank() == 0 and confirm("last.pt"):
        torch.save(weights, "/dev/null")
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
