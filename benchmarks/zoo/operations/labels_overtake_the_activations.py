"""The first stage sends the labels to the last stage before the activations, but the last stage first receives activations.

class: order_cycle, unmatched_p2p
culprit: 0 | 0, 2 | 0, 1, 2
ranks: 3
pattern: https://github.com/tdrussell/diffusion-pipe/issues/409
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def first_stage(layer, last):
    batch, labels = torch.randn(4, 8), torch.randint(5, (4,))
    dist.send(labels, dst=last)  # <- culprit
    dist.send(layer(batch).detach(), dst=1)


def middle_stage(layer, rank):
    hidden = torch.empty(4, 8)
    dist.recv(hidden, src=rank - 1)
    dist.send(layer(hidden).detach(), dst=rank + 1)


def last_stage(layer, rank):
    hidden, labels = torch.empty(4, 8), torch.empty(4, dtype=torch.long)
    dist.recv(hidden, src=rank - 1)  # <- culprit
    dist.recv(labels, src=0)
    return nn.functional.cross_entropy(layer(hidden), labels)


def main():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    layer = nn.Linear(8, 8)
    dist.barrier()
    for step in range(10):
        if rank == 0:
            first_stage(layer, last)
        elif rank < last:
            middle_stage(layer, rank)
        else:
            print(f"step {step} loss {last_stage(layer, rank).item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
