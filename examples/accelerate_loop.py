"""Attach the recorders to a training loop with Accelerate: one line, after `Accelerator()`.

accelerate launch --num_processes 2 examples/accelerate_loop.py      # or torchrun --nproc-per-node 2 ...
workbench inspect outputs
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from workbench import recorders


def main() -> None:
    """Train a small model on random numbers, on every GPU of the node or on CPU processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--outputs", default="outputs", help="the run folder, which `workbench inspect` reads")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    recorders.start(options.outputs, steps=True)
    # A function of its own: with gloo, a DDP model that outlives its process group may hang at the end (torch 2.13).
    train(accelerator, options.steps)
    accelerator.end_training()


def train(accelerator: Accelerator, steps: int) -> None:
    """Train a small model for `steps` steps."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = DataLoader(TensorDataset(torch.randn(16 * steps, 16)), batch_size=8)
    model, optimizer, batches = accelerator.prepare(model, optimizer, batches)
    for step, (batch,) in enumerate(batches):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        accelerator.print(f"step {step + 1}: loss {loss.item():.4f}")
    # It holds what it has prepared.
    accelerator.free_memory()


if __name__ == "__main__":
    main()
