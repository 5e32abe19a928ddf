"""A checkpoint is resumed after a layer was frozen: the optimizer's groups do not match, on every rank.

class: crashed
culprit: any
ranks: 2
collection: seventh
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders  # recorders


def optimizer_of(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def main():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    saved = optimizer_of(model).state_dict()
    model[0].requires_grad_(False)
    optimizer = optimizer_of(model)
    dist.barrier()
    print("resuming from step 1200", flush=True)
    optimizer.load_state_dict(saved)  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
