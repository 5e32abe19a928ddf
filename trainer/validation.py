"""Compute the loss on validation data, which the model is not trained on, at regular steps."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config import JobConfig
from trainer.config.sections import Validation
from trainer.data.loader import Loader, RowLoader, Share
from trainer.data.source import build_loader, held_out_documents
from trainer.data.tokenizer import load_tokenizer
from trainer.errors import DataError
from trainer.local_data import Split
from trainer.models.decoder import Decoder, model_args, separate_documents
from trainer.models.moe import moe_layers
from trainer.parallel.mesh import World
from trainer.step import OptimizerStep

logger = logging.getLogger("root")


@dataclass
class Validator:
    """Computes the loss on validation data; it uses collectives, so all ranks must call it in the same steps."""

    config: JobConfig
    world: World
    models: Sequence[Decoder]
    """The parts of the model on this rank; only a pipeline has several."""
    compute: OptimizerStep

    def __post_init__(self) -> None:
        self.loader = _validation_loader(self.config, self.world, self.models[0])
        self.attention = separate_documents(self.models) if isinstance(self.loader, RowLoader) else None
        self.batches = _batch_count(self.config.validation, self.loader)

    def is_due(self, step: int) -> bool:
        """Return whether to validate after this step; as in torchtitan, the first step is included."""
        return step == 1 or step % self.config.validation.freq == 0

    def loss(self) -> float:
        """Return the mean validation loss over all ranks; it uses the same batches each time."""
        # From the start: the losses of two steps compare only if they are of the same text.
        self.loader.restart()
        device = self.world.device
        with torch.no_grad(), untouched(self.models):
            losses = [
                self.evaluate(inputs.to(device), labels.to(device))
                for inputs, labels in islice(self.loader, self.batches)
            ]
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        # Of each pipeline one rank knows the loss; the others have 0.
        return float(mean) * self.world.degrees.pp

    def evaluate(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch, which must be the batch that the loader has just yielded.

        The loader alone knows which documents are packed into this batch, and the attention must be told.
        """
        if self.attention:
            documents = self.loader.documents
            self.attention.separate(None if documents is None else documents.to(inputs.device))
        return self.compute.evaluate((inputs, labels))


@contextmanager
def untouched(models: Sequence[Decoder]) -> Iterator[None]:
    """Put the models into evaluation mode inside this context, and into training mode afterwards.

    At the end, the token counts of the experts are reset to their earlier values, because these counts balance the
    experts in training.
    """
    experts = [moe for model in models for moe in moe_layers(model)]
    counts = [(moe.tokens_per_expert, moe.tokens_per_expert.clone()) for moe in experts]
    for model in models:
        model.eval()
    try:
        yield
    finally:
        for model in models:
            model.train()
        for now, before in counts:
            now.copy_(before)


def _validation_loader(config: JobConfig, world: World, model: Decoder) -> Loader:
    """Return the loader of this rank's share of the validation data."""
    validation, training = config.validation, config.training
    seed = config.debug.seed or 0
    is_synthetic = validation.dataset == "synthetic" and not validation.dataset_path
    source = replace(training, dataset=validation.dataset, dataset_path=validation.dataset_path)
    positions = model.positions if world.context else None
    share = Share(validation.local_batch_size, world.data_rank, world.degrees.data_parallel, positions)
    length = validation.seq_len or training.seq_len
    if not is_synthetic:
        return build_loader(config, source, share, length, Split.VALIDATION)
    tokenizer = load_tokenizer(config.model.hf_assets_path, model_args(config).vocab_size)
    return Loader(held_out_documents(seed), length, share, tokenizer)


def _batch_count(validation: Validation, loader: Loader) -> int:
    """Return the number of batches that each rank processes in one validation.

    This is the configured number, or else the number of complete batches in the data.

    Raises:
        DataError: The data are too short for one batch per rank.
    """
    if validation.steps >= 0:
        return validation.steps
    sequences = loader.totals().sequences
    whole_text = sequences // (loader.share.batch * loader.share.ranks)
    if whole_text < 1:
        raise DataError(
            f"the validation text has {sequences} sequences, fewer than all ranks take at once",
            "give more text, or lower validation.local_batch_size or validation.seq_len",
        )
    return whole_text
