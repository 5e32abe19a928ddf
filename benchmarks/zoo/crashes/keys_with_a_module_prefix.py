"""A checkpoint of a wrapped model is loaded into a plain one, on every rank.

class: crashed
culprit: any
ranks: 3
collection: third, kept back
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

from workbench import recorders  # recorders


def resume(model, path):
    state = torch.load(path, map_location="cpu")
    model.load_state_dict(state["model"])  # <- culprit


def main():
    path = os.path.join(os.environ["OUTPUTS"], "last.pt")
    wrapped = DDP(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    if dist.get_rank() == 0:
        torch.save({"model": wrapped.state_dict(), "epoch": 3}, path)
    dist.barrier()
    print("resuming from", path, flush=True)
    resume(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)), path)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
