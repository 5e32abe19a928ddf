"""The method that saves a checkpoint ends in a barrier, but after training only the main process calls it.

class: skipped, mismatch
culprit: 0
ranks: 3
collection: fourth
logs: early_exit 1,2 | early_exit 1 | early_exit 2 | collective_timeout 0 | unknown
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def save_checkpoint(model, path):
    if dist.get_rank() == 0:
        torch.save(model, path)
    dist.barrier()  # <- culprit


def main():
    model = {"weight": torch.zeros(16)}
    for epoch in range(4):
        dist.all_reduce(model["weight"])
        save_checkpoint(model, os.path.join(os.environ["OUTPUTS"], "last.pt"))
        print(f"epoch {epoch} val_loss {1 / (epoch + 1):.3f}", flush=True)
    print("max_epochs=4 reached", flush=True)
    if dist.get_rank() == 0:
        save_checkpoint(model, os.path.join(os.environ["OUTPUTS"], "best.pt"))  # <- culprit


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
