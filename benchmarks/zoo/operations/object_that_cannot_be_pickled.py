"""The state that one rank wants to share holds a lock, which cannot be pickled.

class: crashed, dead
culprit: 1
ranks: 3
pattern: https://github.com/pytorch/pytorch/pull/150815
collection: second
"""

import os
import threading
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class Sampler:
    def __init__(self, rank):
        self.position = 10 * rank
        self.cache = threading.Lock() if rank == 1 else None


def share(state):
    states = [None] * dist.get_world_size()
    dist.all_gather_object(states, state)  # <- culprit
    return states


def main():
    sampler = Sampler(dist.get_rank())
    for _ in range(4):
        dist.all_reduce(torch.ones(6))
    share({"sampler": sampler, "step": 4})
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
