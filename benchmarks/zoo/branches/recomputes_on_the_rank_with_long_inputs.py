"""A rank with long inputs recomputes its activations in backward, and the recomputed part contains an all-reduce.

class: skipped, mismatch
culprit: 1
ranks: 3
collection: fifth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from workbench import recorders  # recorders


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(32, 32)

    def forward(self, x):
        h = self.layer(x).relu()
        center = h.detach().mean(0)
        dist.all_reduce(center)  # <- culprit
        return h - center


def main():
    rank = dist.get_rank()
    block = Block()
    for step in range(10):
        length = 900 if rank == 1 and step == 6 else 60
        x = torch.randn(length, 32, requires_grad=True)
        # Without this PyTorch stops to recompute after the last tensor that backward needs, before the all-reduce.
        with set_checkpoint_early_stop(False):
            y = checkpoint(block, x, use_reentrant=False) if length > 500 else block(x)
        y.square().mean().backward()
        flat = torch.cat([p.grad.flatten() for p in block.parameters()])
        dist.all_reduce(flat)
        block.zero_grad()
        print(f"[{rank}] iteration {step}: sequence length {length}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
