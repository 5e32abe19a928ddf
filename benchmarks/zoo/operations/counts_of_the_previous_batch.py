"""One rank prepares its receive buffers for routed tokens with the counts of the batch before.

class: mismatch, crashed
culprit: 1
ranks: 3
collection: fifth
logs: mismatch 1,2 | unknown
"""

import os
import random
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def counts(step, world):
    """Return how many tokens each rank sends to each other one."""
    draw = random.Random(step)
    return [[draw.randint(1, 9) for _ in range(world)] for _ in range(world)]


def main():
    rank, world = dist.get_rank(), dist.get_world_size()
    for step in range(8):
        routed = counts(step, world)
        before = counts(step - 1, world) if rank == 1 and step == 5 else routed
        sent = routed[rank]
        received = [row[rank] for row in before]
        tokens = torch.randn(sum(sent), 16)
        output = torch.empty(sum(received), 16)
        dist.all_to_all_single(output, tokens, received, sent)  # <- culprit
        print(f"step {step}: sent {sum(sent)} tokens, received {sum(received)}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
