"""Attach the recorders to plain PyTorch: two lines, after `init_process_group`.

torchrun --nproc-per-node 2 examples/plain_pytorch.py
workbench inspect outputs
"""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench import recorders


def main() -> None:
    """Train a small model on random numbers, on every GPU of the node or on CPU processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--outputs", default="outputs", help="the run folder, which `workbench inspect` reads")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    recorders.start(options.outputs, steps=True)
    # A function of its own: with gloo, a DDP model that outlives its process group may hang at the end (torch 2.13).
    train(options.steps)
    dist.destroy_process_group()


def train(steps: int) -> None:
    """Train a small model for `steps` steps."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count()) if on_gpu else torch.device("cpu")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        loss = model(torch.randn(8, 16, device=device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
