"""One rank gets a very long sequence, whose attention scores do not fit into memory.

class: oom
culprit: 1
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def attention(length):
    query = torch.ones(1).expand(length, length)
    return query.clone()  # <- culprit


def main():
    for step in range(5):
        length = 1 << 24 if dist.get_rank() == 1 and step == 3 else 32
        scores = attention(length).sum()
        dist.all_reduce(scores)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
