"""Each rank lowers its rate by its own validation loss and ends when the rate is very small; one rank gets there first.

class: dead, skipped
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
from torch.optim.lr_scheduler import ReduceLROnPlateau

from workbench import recorders  # recorders


def validate(epoch):
    noise = 0.05 * epoch if dist.get_rank() == 2 and epoch > 2 else 0.0
    return 1 / (epoch + 1) + noise


def train():
    model = DistributedDataParallel(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    plateau = ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    for epoch in range(15):
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(16, 8)).square().mean().backward()  # <- culprit
            optimizer.step()
        loss = validate(epoch)
        plateau.step(loss)
        rate = optimizer.param_groups[0]["lr"]
        print(f"epoch {epoch} val_loss {loss:.3f} lr {rate:.1e}", flush=True)
        if rate < 1e-4:
            print("learning rate is below 1e-4, training ends", flush=True)
            return  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
train()  # <- culprit
dist.destroy_process_group()
