"""One rank fails and all are restarted; the folder of another rank has no checkpoint, so that this one starts over.

class: mismatch, skipped
culprit: 1
ranks: 3
restarts: 1
collection: ninth, kept back
"""

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


def main():
    rank = dist.get_rank()
    checkpoint = Path(os.environ["OUTPUTS"]) / f"local{rank}" / "last.pt"
    weights, start = torch.zeros(32), 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        weights, start = state["weights"], state["step"]
    print(f"starting at step {start}", flush=True)
    for step in range(start, 12):
        gradient = torch.randn(32)
        dist.all_reduce(gradient)  # <- culprit
        weights -= 0.01 * gradient
        print(f"step {step} norm {weights.norm().item():.3f}", flush=True)
        if step == 6 and rank != 1:
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            torch.save({"weights": weights, "step": step + 1}, checkpoint)
        if step == 8 and rank == 2 and not start:
            raise RuntimeError("ECC error was reported for the device")
    accuracy = torch.tensor([0.5, 1.0])
    dist.all_reduce(accuracy)
    print(f"accuracy {accuracy[0].item() / accuracy[1].item():.3f}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
