"""Attach the recorders to a recipe in the style of torchtune: two lines, in the constructor, after the process group.

torchrun --nproc-per-node 2 examples/recipe_class.py
workbench inspect outputs
"""

import argparse

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from workbench import recorders


class FineTune:
    """Fine-tunes a small model with FSDP2, activation checkpointing and accumulated gradients."""

    accumulation_steps = 2

    def __init__(self, options: argparse.Namespace) -> None:
        on_gpu = torch.cuda.is_available()
        dist.init_process_group("nccl" if on_gpu else "gloo")
        recorders.start(options.outputs, steps=True)
        self.rank, self.steps = dist.get_rank(), options.steps
        self.device = torch.device("cuda", self.rank % torch.cuda.device_count()) if on_gpu else torch.device("cpu")

    def setup(self) -> None:
        """Build the model, its optimizer and the data."""
        blocks = [nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16)) for _ in range(2)]
        self.model = nn.Sequential(*blocks).to(self.device)
        mesh = init_device_mesh(self.device.type, (dist.get_world_size(),))
        for module in (*self.model, self.model):
            fully_shard(module, mesh=mesh)
            # Gloo cannot divide while it reduces.
            module.set_force_sum_reduction_for_comms(enable=True)  # type: ignore[attr-defined]
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        rows = TensorDataset(torch.randn(8 * dist.get_world_size() * self.steps * self.accumulation_steps, 16))
        self.batches = DataLoader(rows, batch_size=8, sampler=DistributedSampler(rows))

    def loss(self, rows: Tensor) -> Tensor:
        """Return the loss of a batch; activations are computed again in the backward pass."""
        output: Tensor = checkpoint(self.model, rows, use_reentrant=False)
        return output.square().mean()

    def train(self) -> None:
        """Train for one epoch."""
        for number, (rows,) in enumerate(self.batches):
            loss = self.loss(rows.to(self.device)) / self.accumulation_steps
            loss.backward()
            if (number + 1) % self.accumulation_steps:
                continue
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            if self.rank == 0:
                print(f"step {(number + 1) // self.accumulation_steps}: loss {loss.item():.4f}")

    def cleanup(self) -> None:
        """Destroy the process group."""
        dist.destroy_process_group()


def main() -> None:
    """Run the recipe as torchrun started it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--outputs", default="outputs", help="the run folder, which `workbench inspect` reads")
    parser.add_argument("--steps", type=int, default=10)
    recipe = FineTune(parser.parse_args())
    recipe.setup()
    recipe.train()
    recipe.cleanup()


if __name__ == "__main__":
    main()
