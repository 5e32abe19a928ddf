"""Features are gathered with their gradients, which takes an operation in backward; one rank has frozen its tower.

class: mismatch, skipped
culprit: 1
ranks: 3
collection: tenth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather

from workbench import recorders  # recorders


def average_gradients(parameters):
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        dist.all_reduce(parameter.grad)  # <- culprit
        parameter.grad /= dist.get_world_size()


def contrast(images, texts):
    images, texts = torch.cat(all_gather(images)), torch.cat(all_gather(texts))
    return nn.functional.cross_entropy(images @ texts.T, torch.arange(len(images)))


def main():
    image_tower, text_tower = nn.Linear(12, 6), nn.Linear(9, 6)
    parameters = [*image_tower.parameters(), *text_tower.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    seen = 0
    for step in range(12):
        samples = 6 if dist.get_rank() == 1 else 4
        with torch.set_grad_enabled(seen < 36):  # <- culprit
            images = image_tower(torch.randn(4, 12))
        loss = contrast(images, text_tower(torch.randn(4, 9)))
        optimizer.zero_grad()
        loss.backward()  # <- culprit
        average_gradients(parameters)
        optimizer.step()
        seen += samples
        print(f"step {step} seen {seen} loss {loss.item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
