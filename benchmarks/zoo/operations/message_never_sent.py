"""A worker waits for a command that the coordinator does not send to it.

class: unmatched_p2p, skipped, mismatch
culprit: 0
ranks: 3
collection: first
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def coordinate():
    for peer in range(1, dist.get_world_size() - 1):
        dist.send(torch.tensor([float(peer)]), dst=peer)


def work():
    command = torch.empty(1)
    dist.recv(command, src=0)
    return command.item()


def main():
    for _ in range(2):
        dist.all_reduce(torch.ones(4))
    if dist.get_rank() == 0:
        coordinate()
    else:
        print("command", work(), flush=True)
    dist.all_reduce(torch.ones(4))  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
