"""The settings of one node name a device that its build of PyTorch does not support.

class: crashed, startup
culprit: 1
ranks: 2
collection: fifth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    device = "cuda" if dist.get_rank() == 1 else "cpu"
    print(f"using {device}", flush=True)
    model = torch.nn.Linear(8, 8).to(device)  # <- culprit
    for step in range(5):
        model(torch.randn(4, 8)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
