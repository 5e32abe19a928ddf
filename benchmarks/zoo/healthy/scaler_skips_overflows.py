"""The loss scale is too large at first, so that all ranks skip some steps with infinite gradients together.

class: healthy
culprit: none
ranks: 2
collection: third
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


class Scaler:
    scale = 2.0**19

    def step(self, model, step):
        total = sum(parameter.grad.half().norm().float() for parameter in model.parameters()).reshape(1)
        dist.all_reduce(total)
        if torch.isfinite(total):
            return True
        self.scale /= 2
        if dist.get_rank() == 0:
            print(
                f"[step {step}] OVERFLOW! grad_norm: inf. Skipping step, reducing loss scale to {self.scale}",
                flush=True,
            )
        return False


def main():
    model = nn.Linear(64, 64)
    scaler = Scaler()
    for step in range(15):
        model.zero_grad()
        loss = model(torch.randn(8, 64)).square().mean()
        (loss * scaler.scale).backward()
        done = scaler.step(model, step)
        if dist.get_rank() == 0:
            print(f"step: {step} loss: {loss.item() if done else float('nan'):.4f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
