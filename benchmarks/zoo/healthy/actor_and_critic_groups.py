"""Two roles have groups of their own, of which one communicates three times as often as the other.

class: healthy
culprit: none
ranks: 4
collection: fifth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    actors, critics = dist.new_group([0, 1]), dist.new_group([2, 3])
    group, updates = (actors, 9) if rank < 2 else (critics, 3)
    for iteration in range(4):
        for _ in range(updates):
            gradient = torch.randn(32)
            dist.all_reduce(gradient, group=group)
        rewards = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(rewards, torch.tensor([float(rank)]))
        print(f"iteration {iteration} role {'actor' if rank < 2 else 'critic'} updates {updates}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
