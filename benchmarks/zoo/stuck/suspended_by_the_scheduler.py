"""The process of one rank is stopped and never continued.

class: host_stuck
culprit: 1
ranks: 3
pattern: https://github.com/huggingface/accelerate/issues/2912
collection: first, kept back
"""

import os
import signal
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    for step in range(10):
        dist.all_reduce(torch.ones(10))
        if step == 4 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGSTOP)  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
