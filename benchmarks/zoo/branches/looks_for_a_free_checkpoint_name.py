"""Each rank keeps its own best score, so that one stops looking for a free checkpoint name before the others.

class: skipped, mismatch
culprit: 1
ranks: 3
collection: third
"""

import os
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def exists(path):
    answer = torch.tensor([float(os.path.exists(path))])
    dist.broadcast(answer, src=0)
    return bool(answer)


def free_name(folder, previous):
    version = 0
    path = os.path.join(folder, "best.pt")
    while path != previous and exists(path):  # <- culprit
        version += 1
        path = os.path.join(folder, f"best-v{version}.pt")
    return path


def main():
    rank = dist.get_rank()
    folder = tempfile.mkdtemp()
    if rank == 0:
        for name in ("best.pt", "best-v1.pt"):
            open(os.path.join(folder, name), "w").close()
    # The score was logged on rank 0 only; rank 1 happened to see another best checkpoint.
    previous = os.path.join(folder, "best-v1.pt") if rank == 1 else None
    for epoch in range(4):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        if rank == 0:
            print(f"epoch {epoch} val_loss {loss.item():.3f}", flush=True)
        if epoch == 2:
            free_name(folder, previous)


dist.init_process_group("gloo", timeout=timedelta(seconds=10))
recorders.start(os.environ["OUTPUTS"], timeout_s=10)  # recorders
main()
dist.destroy_process_group()
