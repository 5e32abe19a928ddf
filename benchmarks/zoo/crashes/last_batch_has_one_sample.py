"""The last batch of one rank has a single sample, of which batch normalisation cannot take a variance.

class: crashed
culprit: 1
ranks: 3
collection: eighth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def main():
    norm = nn.BatchNorm1d(8)
    for step in range(8):
        size = 1 if dist.get_rank() == 1 and step == 5 else 4
        loss = norm(torch.randn(size, 8)).square().mean()  # <- culprit
        total = loss.detach().clone()
        dist.all_reduce(total)
        print(f"step {step} loss {total.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
