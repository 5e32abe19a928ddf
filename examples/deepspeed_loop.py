"""Attach the recorders to a training loop with DeepSpeed: two lines, after `init_distributed`.

deepspeed --num_gpus 2 examples/deepspeed_loop.py      # or torchrun --nproc-per-node 2 ...
workbench inspect outputs
"""

import argparse

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

from workbench import recorders


def main() -> None:
    """Train a small model on random numbers with ZeRO, on every GPU of the node or on CPU processes."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--outputs", default="outputs", help="the run folder, which `workbench inspect` reads")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--local_rank", type=int, help="set by the launcher of DeepSpeed")
    options = parser.parse_args()

    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    recorders.start(options.outputs, steps=True)
    train(options.steps)
    dist.destroy_process_group()


def train(steps: int) -> None:
    """Train a small model for `steps` steps."""
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}},
    )
    for step in range(steps):
        loss = engine(torch.randn(8, 16, device=engine.device)).square().mean()
        engine.backward(loss)
        engine.step()
        if dist.get_rank() == 0:
            print(f"step {step + 1}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
