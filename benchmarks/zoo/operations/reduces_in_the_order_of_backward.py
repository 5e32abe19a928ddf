"""Each gradient is reduced by a hook as soon as it is ready; one rank calls the two heads in the other order.

class: mismatch, skipped, order_cycle
culprit: 2
ranks: 3
collection: ninth, kept back
logs: mismatch 1,2 | mismatch 0,2
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def reduce_gradient(parameter):
    dist.all_reduce(parameter.grad)  # <- culprit
    parameter.grad /= dist.get_world_size()


def main():
    torch.manual_seed(1)
    trunk, words, images = nn.Linear(8, 8), nn.Linear(8, 50), nn.Linear(8, 5)
    parameters = [*trunk.parameters(), *words.parameters(), *images.parameters()]
    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(reduce_gradient)
    optimizer = torch.optim.SGD(parameters, lr=0.01)
    for step in range(8):
        hidden = trunk(torch.randn(4, 8))
        order = [words, images] if dist.get_rank() != 2 or step < 3 else [images, words]
        loss = sum(head(hidden).square().mean() for head in order)
        loss.backward()  # <- culprit
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
