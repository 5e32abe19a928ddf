"""One rank masks an activation in place that backward needs.

class: crashed
culprit: 2
ranks: 3
collection: eighth
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    weight = torch.randn(8, requires_grad=True)
    for step in range(8):
        hidden = weight.exp()
        if dist.get_rank() == 2 and step == 4:
            hidden[0] = 0.0
        hidden.sum().backward()  # <- culprit
        dist.all_reduce(weight.grad)
        weight.grad = None
        print(f"step {step}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
