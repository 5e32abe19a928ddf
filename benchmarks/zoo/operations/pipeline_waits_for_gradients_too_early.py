"""The first stage waits for a gradient after one micro-batch, the second sends it only after it received two.

class: order_cycle, unmatched_p2p
culprit: 0, 1 | 0
ranks: 3
pattern: https://github.com/pytorch/pytorch/issues/172668
collection: second, kept back
logs: unmatched_p2p
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

MICROBATCHES = 4
SHAPE = (2, 8)


def first_stage():
    for _ in range(MICROBATCHES):
        dist.send(torch.randn(SHAPE), dst=1)
        dist.recv(torch.empty(SHAPE), src=1)  # <- culprit


def middle_stage():
    warm = [receive(0), receive(0)]  # <- culprit
    for _ in range(MICROBATCHES):
        dist.send(warm.pop(0) * 2, dst=2)
        dist.send(receive(2), dst=0)
        if len(warm) < 2:
            warm.append(receive(0))


def last_stage():
    for _ in range(MICROBATCHES):
        dist.send(receive(1) * 0.5, dst=1)


def receive(peer):
    tensor = torch.empty(SHAPE)
    dist.recv(tensor, src=peer)
    return tensor


def main():
    dist.barrier()
    [first_stage, middle_stage, last_stage][dist.get_rank()]()


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
