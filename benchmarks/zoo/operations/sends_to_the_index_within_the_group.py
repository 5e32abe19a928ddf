"""The first rank of each pair sends to number 1 of its pair, but messages go to ranks of the world.

class: unmatched_p2p, mismatch, skipped
culprit: 2
ranks: 4
collection: ninth, kept back
logs: unmatched_p2p 2,3 | unmatched_p2p
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    group = pairs[rank // 2]
    weights = torch.ones(64)
    for step in range(4):
        dist.all_reduce(weights, group=group)
        weights /= 2
        print(f"step {step}", flush=True)
    if dist.get_rank(group) == 0:
        dist.send(weights, dst=1)  # <- culprit
    else:
        dist.recv(weights, src=rank - 1)
    print("pair is in sync", flush=True)
    for step in range(4, 8):
        dist.all_reduce(weights)
        weights /= dist.get_world_size()
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
