"""Two ranks poll for a marker file, which rank 0 wrote into another folder.

class: host_stuck
culprit: 1, 2
ranks: 3
collection: first
logs: collective_timeout
"""

import os
import tempfile
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.1)  # <- culprit


def main():
    rank = dist.get_rank()
    dist.all_reduce(torch.ones(1))
    folder = tempfile.mkdtemp()
    marker = os.path.join(folder, "cache.done")
    if rank == 0:
        open(marker, "w").close()
    else:
        wait_for(marker)
    dist.all_reduce(torch.ones(1))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
