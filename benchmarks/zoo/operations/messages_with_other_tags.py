"""Sender and receiver count the steps from another number, and use them as tags of their messages.

class: unmatched_p2p, mismatch, order_cycle
culprit: 0, 1 | 0 | 1
ranks: 2
collection: second
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def actor(steps):
    for step in range(steps):
        dist.send(torch.full((16,), float(step)), dst=1, tag=step)  # <- culprit


def learner(steps):
    for step in range(1, steps + 1):
        episode = torch.empty(16)
        dist.recv(episode, src=0, tag=step)  # <- culprit
        print("episode", step, episode.mean().item(), flush=True)


def main():
    dist.barrier()
    if dist.get_rank() == 0:
        actor(6)
    else:
        learner(6)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
