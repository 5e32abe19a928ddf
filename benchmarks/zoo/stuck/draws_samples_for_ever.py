"""One rank draws samples until one is short enough, and its shard has none.

class: host_stuck
culprit: 2
ranks: 4
collection: second
"""

import os
import random
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def draw(lengths):
    while True:
        length = random.choice(lengths)  # <- culprit
        if length <= 512:  # <- culprit
            return torch.ones(length)


def main():
    rank = dist.get_rank()
    shards = [[100, 200, 4000]] * 6
    for index, shard in enumerate(shards):
        lengths = [2000, 4000] if rank == 2 and index == 4 else shard
        sample = draw(lengths)
        dist.all_reduce(sample.sum().reshape(1))


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
