"""Each rank stops when its own clock says that the time is up; one clock is ahead.

class: mismatch, skipped
culprit: 0
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/22834
collection: first, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def benchmark(seconds, rank):
    model = DDP(nn.Linear(4, 4))
    start = time.time() - (0.5 if rank == 0 else 0.0)
    trials = 0
    while time.time() - start < seconds:
        model(torch.ones(1, 4)).sum().backward()
        time.sleep(0.05)
        trials += 1
    counts = [None] * dist.get_world_size()
    dist.all_gather_object(counts, trials)  # <- culprit
    return counts


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
print(benchmark(1.5, dist.get_rank()))
dist.destroy_process_group()
