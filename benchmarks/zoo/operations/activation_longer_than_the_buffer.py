"""The first stage sends a longer sequence than the fixed buffer of the second one.

class: mismatch, crashed, unmatched_p2p
culprit: 0, 1 | 1 | 0
ranks: 3
collection: third, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders

BUFFER = (4, 32)


def lengths():
    return [32, 32, 32, 48, 32]


def first():
    for length in lengths():
        dist.send(torch.randn(4, length), dst=1)


def middle():
    for _ in lengths():
        activation = torch.empty(BUFFER)
        dist.recv(activation, src=0)  # <- culprit
        dist.send(activation, dst=2)


def last():
    for number, _ in enumerate(lengths()):
        activation = torch.empty(BUFFER)
        dist.recv(activation, src=1)
        print("microbatch", number, activation.norm().item(), flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
(first, middle, last)[dist.get_rank()]()
dist.destroy_process_group()
