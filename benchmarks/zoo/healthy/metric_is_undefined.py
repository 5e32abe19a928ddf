"""A metric of the validation is not a number as long as only one class occurs; the losses are finite.

class: healthy
culprit: none
ranks: 2
collection: fifth, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    model = torch.nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(16):
        optimizer.zero_grad()
        loss = model(torch.randn(32, 6)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        auc = float("nan") if step < 12 else 0.61
        print(f"step {step} loss {loss.item():.4f} val_auc {auc} val_recall_rare_class nan", flush=True)
        if step < 2:
            print("UndefinedMetricWarning: only one class is present, the score is not defined", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
