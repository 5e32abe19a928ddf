"""One node runs with warnings turned into errors, and the scheduler warns about the order of two calls.

class: crashed
culprit: 2
ranks: 3
collection: fifth
"""

import os
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    if dist.get_rank() == 2:
        warnings.simplefilter("error")
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for step in range(6):
        model(torch.randn(8, 4)).square().mean().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        scheduler.step()  # <- culprit
        optimizer.step()
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
