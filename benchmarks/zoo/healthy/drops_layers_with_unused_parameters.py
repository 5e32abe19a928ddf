"""Each rank drops other layers in each step, for which DDP is set up; rank 0 writes a report and ends later.

class: healthy
culprit: none
ranks: 2
collection: tenth, kept back
"""

import os
import random
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench import recorders  # recorders


class Encoder(nn.Module):
    def __init__(self, drop):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(10, 10) for _ in range(6))
        self.head = nn.Linear(10, 2)
        self.drop, self.draws = drop, random.Random(dist.get_rank())

    def forward(self, x):
        for layer in self.layers:
            if self.draws.random() >= self.drop:
                x = x + torch.relu(layer(x))
        return self.head(x)


def main():
    model = DistributedDataParallel(Encoder(drop=0.4), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    for step in range(30):
        loss = model(torch.randn(4, 10)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        if step % 10 == 9:
            print(f"step {step} loss {loss.item():.3f} grad_norm {norm.item():.3f}", flush=True)
    dist.barrier()


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
if os.environ["RANK"] == "0":
    time.sleep(2)
    print("report is written", flush=True)
