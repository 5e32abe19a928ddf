"""Each rank checks its own loss and leaves with exit code 1 where it is not a number.

class: nonfinite_loss
culprit: 2
ranks: 3
collection: fourth
"""

import math
import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    for step in range(20):
        scale = 0.0 if rank == 2 and step == 7 else 1.0
        loss = (torch.tensor([scale]) / scale).log().abs()
        if not math.isfinite(loss.item()):
            print(f"Loss is {loss.item()}, stopping training", flush=True)
            sys.exit(1)  # <- culprit
        dist.all_reduce(loss)
        print(f"Epoch: [0]  [{step}/20]  eta: 0:00:01  loss: {loss.item() + 0.5:.4f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
