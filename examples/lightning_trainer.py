"""Attach the recorders to Lightning: a callback starts them when training begins.

torchrun --nproc-per-node 2 examples/lightning_trainer.py
workbench inspect outputs
"""

import argparse

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from workbench import recorders


class StartRecorders(lightning.Callback):
    """Attaches the recorders once Lightning has made its process group."""

    def __init__(self, outputs: str) -> None:
        self.outputs = outputs

    def on_train_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        """Start the recorders on every rank."""
        recorders.start(self.outputs, steps=True)


class Regression(lightning.LightningModule):
    """A small regression model, trained on random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 4))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        loss: Tensor = self.layers(batch[0]).square().mean()
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW with its usual settings."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train on every GPU of the node or on CPU processes, as torchrun started them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--outputs", default="outputs", help="the run folder, which `workbench inspect` reads")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    trainer = lightning.Trainer(
        max_steps=options.steps,
        accelerator="auto",
        devices="auto" if torch.cuda.is_available() else 2,
        strategy="ddp",
        callbacks=[StartRecorders(options.outputs)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Regression(), DataLoader(TensorDataset(torch.randn(256, 16)), batch_size=8))


if __name__ == "__main__":
    main()
