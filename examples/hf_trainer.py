"""Attach the recorders to Hugging Face's Trainer: a callback starts them when training begins.

torchrun --nproc-per-node 2 examples/hf_trainer.py
workbench inspect outputs
"""

import argparse

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from workbench import recorders


class StartRecorders(TrainerCallback):
    """Attaches the recorders once the Trainer has made its process group."""

    def __init__(self, outputs: str) -> None:
        self.outputs = outputs

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        """Start the recorders on every rank."""
        recorders.start(self.outputs, steps=True)


class RandomTokens(Dataset[dict[str, Tensor]]):
    """Sequences of random tokens."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        tokens = torch.randint(0, 128, (32,))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train a very small Llama on every GPU of the node or on CPU processes, as torchrun started them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--outputs", default="outputs", help="the run folder, which `workbench inspect` reads")
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()

    config = LlamaConfig(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
    )
    arguments = TrainingArguments(
        output_dir=f"{options.outputs}/hf",
        max_steps=options.steps,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=LlamaForCausalLM(config),
        args=arguments,
        train_dataset=RandomTokens(),
        callbacks=[StartRecorders(options.outputs)],
    )
    trainer.train()


if __name__ == "__main__":
    main()
