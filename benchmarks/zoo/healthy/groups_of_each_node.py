"""Each node has a group, the leaders have another one, and the averages are made in two levels.

class: healthy
culprit: none
ranks: 4
collection: second
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def make_groups():
    node, _ = dist.new_subgroups(group_size=2, timeout=timedelta(seconds=10))
    leaders = dist.new_group([0, 2], timeout=timedelta(seconds=10))
    return node, leaders


def average(tensor, node, leaders):
    rank = dist.get_rank()
    dist.reduce(tensor, dst=rank - rank % 2, group=node)
    if rank % 2 == 0:
        dist.all_reduce(tensor, group=leaders)
    dist.broadcast(tensor, src=rank - rank % 2, group=node)
    return tensor / dist.get_world_size()


def main():
    node, leaders = make_groups()
    for step in range(10):
        gradient = average(torch.full((20,), float(dist.get_rank())), node, leaders)
        print("step", step, gradient.mean().item(), flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
