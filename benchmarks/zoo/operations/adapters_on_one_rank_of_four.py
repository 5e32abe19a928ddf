"""Gradients are summed in one flat tensor, and one rank of four was started with a larger adapter.

class: mismatch
culprit: 3
ranks: 4
collection: fourth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    adapter = torch.nn.Linear(64, 32 if rank == 3 else 16)
    print(f"rank {rank}: {sum(p.numel() for p in adapter.parameters())} trainable parameters", flush=True)
    for step in range(10):
        adapter(torch.randn(4, 64)).square().mean().backward()
        flat = torch.cat([p.grad.flatten() for p in adapter.parameters()])
        dist.all_reduce(flat)  # <- culprit
        print(f"step {step} norm {flat.norm().item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
