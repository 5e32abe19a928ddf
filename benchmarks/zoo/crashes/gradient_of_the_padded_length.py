"""A function with its own backward returns the gradient of the padded input, which fails on the rank with an odd length.

class: crashed
culprit: 2
ranks: 3
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench import recorders  # recorders


class PairwiseMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        if x.shape[1] % 2:
            x = nn.functional.pad(x, (0, 0, 0, 1))
        return (x[:, ::2] + x[:, 1::2]) / 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.repeat_interleave(2, dim=1) / 2  # <- culprit


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 8), nn.Linear(8, 50)

    def forward(self, tokens):
        return self.head(PairwiseMean.apply(self.embed(tokens)))


def main():
    model = DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(10):
        length = 17 if dist.get_rank() == 2 and step == 4 else 16
        loss = model(torch.randint(50, (4, length))).square().mean()
        optimizer.zero_grad()
        loss.backward()  # <- culprit
        optimizer.step()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
