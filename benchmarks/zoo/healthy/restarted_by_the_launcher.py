"""The first attempt fails on one rank; torchrun restarts all ranks, and the second attempt runs to its end.

class: healthy
culprit: none
ranks: 2
restarts: 1
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    for step in range(12):
        dist.all_reduce(torch.ones(5))
        if attempt == 0 and step == 6 and dist.get_rank() == 1:
            raise ConnectionResetError("lost the data server")
    print("finished in attempt", attempt)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
