"""One rank exports its best model in evaluation mode and stays in it, so that its normalisation is no longer shared.

class: skipped, mismatch
culprit: 2
ranks: 3
collection: fifth
"""

import os
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from workbench import recorders  # recorders


class SharedNorm(torch.nn.Module):
    def forward(self, x):
        if not self.training:
            return x
        moments = torch.stack([x.mean(0), x.square().mean(0)]).detach()
        dist.all_reduce(moments)  # <- culprit
        mean, square = moments / dist.get_world_size()
        return (x - mean) / (square - mean.square() + 1e-5).sqrt()


def export(model, path):
    model.eval()
    torch.save(model.state_dict(), path)


def main():
    rank = dist.get_rank()
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), SharedNorm(), torch.nn.Linear(8, 1))
    best = 0.5
    for step in range(12):
        loss = model(torch.randn(8, 16)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        model.zero_grad()
        score = 0.4 if rank == 2 and step == 5 else 0.6
        if score < best:
            best = score
            export(model, Path(tempfile.mkdtemp()) / "best.pt")
        print(f"step {step} loss {loss.item():.4f} best {best}", flush=True)


dist.init_process_group("gloo", timeout=timedelta(seconds=8))
recorders.start(os.environ["OUTPUTS"], timeout_s=8)  # recorders
main()
dist.destroy_process_group()
