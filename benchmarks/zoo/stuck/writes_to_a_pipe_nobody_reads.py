"""Rank 0 logs to a named pipe whose reader is gone.

class: host_stuck
culprit: 0
ranks: 2
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def log(path, text):
    with open(path, "w") as sink:  # <- culprit
        sink.write(text)


def main():
    path = os.path.join(os.environ["OUTPUTS"], "metrics.pipe")
    dist.all_reduce(torch.ones(1))
    if dist.get_rank() == 0:
        os.mkfifo(path)
        log(path, "step 1\n")
    dist.all_reduce(torch.ones(1))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
