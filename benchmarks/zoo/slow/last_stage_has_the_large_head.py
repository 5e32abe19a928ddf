"""A pipeline of three stages: the last one computes the large head and the loss, so that the others wait for its gradients in each step.

class: healthy, slow, straggler
culprit: none | 2
ranks: 3
collection: tenth, kept back
"""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def stage_step(layer, rank, last, batch):
    if rank:
        batch = torch.empty(4, 8)
        dist.recv(batch, src=rank - 1)
        batch.requires_grad_()
    output = layer(batch)
    if rank < last:
        dist.send(output.detach(), dst=rank + 1)
        gradient = torch.empty_like(output)
        dist.recv(gradient, src=rank + 1)
        output.backward(gradient)
        loss = None
    else:
        time.sleep(0.35)
        loss = output.square().mean()
        loss.backward()
    if rank:
        dist.send(batch.grad, dst=rank - 1)
    return loss


def main():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    layer = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    for step in range(14):
        optimizer.zero_grad()
        losses = [stage_step(layer, rank, last, torch.randn(4, 8)) for _ in range(2)]
        optimizer.step()
        if rank == last:
            print(f"step {step} loss {sum(losses).item() / 2:.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
