"""One rank loads an adapter whose parameters are frozen, which DistributedDataParallel refuses.

class: crashed
culprit: 1
ranks: 3
collection: fourth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def load_model(rank):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 2))
    # The adapter was saved for inference on this rank.
    for parameter in model.parameters():
        parameter.requires_grad = rank != 1
    return model


def main():
    model = torch.nn.parallel.DistributedDataParallel(load_model(dist.get_rank()))  # <- culprit
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(10):
        loss = model(torch.randn(4, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step} loss {loss.item():.4f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
