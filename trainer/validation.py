"""The loss on text that the model is not trained on, every so many steps."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.config import JobConfig
from trainer.config.sections import Validation
from trainer.data.loader import Loader, Share
from trainer.data.text import documents, held_out_documents
from trainer.errors import DataError
from trainer.models.decoder import Decoder
from trainer.models.moe import moe_layers
from trainer.parallel.mesh import World
from trainer.parallel.tensor_parallel import split_loss
from trainer.step import OptimizerStep, whole

logger = logging.getLogger("root")


@dataclass
class Validator:
    """Computes the loss on its own data; all ranks call it in the same steps."""

    config: JobConfig
    world: World
    model: Decoder
    compute: OptimizerStep

    def __post_init__(self) -> None:
        self.loader = validation_loader(self.config, self.world, self.model)
        self.batches = batch_count(self.config.validation, self.loader)

    def is_due(self, step: int) -> bool:
        """Return whether this step ends with a validation: the first one does, as in torchtitan."""
        return step == 1 or step % self.config.validation.freq == 0

    def loss(self) -> float:
        """Return the mean loss over the same batches each time, over all ranks."""
        # From the start: the losses of two steps compare only if they are of the same text.
        self.loader.consumed = 0
        with torch.no_grad(), untouched(self.model):
            losses = [self.batch_loss(*batch) for batch in islice(self.loader, self.batches)]
        mean = torch.stack(losses).mean()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        return float(mean)

    def batch_loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of one batch on this rank."""
        device = self.world.device
        with split_loss(self.world.tensor), self.compute.autocast():
            return whole(self.compute.loss_fn(self.model(inputs.to(device)), labels.to(device)))


@contextmanager
def untouched(model: Decoder) -> Iterator[None]:
    """Leave the model as it was: in training mode, and with the tokens of training alone counted by its experts."""
    counts = [(moe.tokens_per_expert, moe.tokens_per_expert.clone()) for moe in moe_layers(model)]
    model.eval()
    try:
        yield
    finally:
        model.train()
        for now, before in counts:
            now.copy_(before)


def validation_loader(config: JobConfig, world: World, model: Decoder) -> Loader:
    """Return this rank's share of the validation data."""
    validation, training = config.validation, config.training
    seed = config.debug.seed or 0
    is_synthetic = validation.dataset == "synthetic" and not validation.dataset_path
    source = replace(training, dataset=validation.dataset, dataset_path=validation.dataset_path)
    text = held_out_documents(seed) if is_synthetic else documents(source, seed)
    positions = model.positions if world.context else None
    share = Share(validation.local_batch_size, world.data_rank, world.degrees.data_parallel, positions)
    return Loader(text, validation.seq_len or training.seq_len, share)


def batch_count(validation: Validation, loader: Loader) -> int:
    """Return how many batches each rank takes: as asked, or all whole ones of the text.

    Raises:
        DataError: The text is too short for one.
    """
    whole_text = loader.sequences // (loader.share.batch * loader.share.ranks)
    if whole_text < 1:
        raise DataError(
            f"the validation text has {loader.sequences} sequences, fewer than all ranks take at once",
            "give more text, or lower validation.local_batch_size or validation.seq_len",
        )
    return whole_text if validation.steps < 0 else validation.steps
