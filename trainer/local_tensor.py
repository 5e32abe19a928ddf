"""Run one step of all ranks in one process: PyTorch's `LocalTensor` holds a tensor for each rank and computes on all.

Losses and gradients are the same as with real ranks. This works only for tensor parallelism, where all ranks run the
same program and all collectives belong to DTensor. It does not work for FSDP2, DDP, pipelines, context or expert
parallelism.
"""

import logging
import time
from contextlib import nullcontext
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode, maybe_disable_local_tensor_mode

from trainer.config import JobConfig
from trainer.config.checks import accumulation_steps, checked_mesh
from trainer.config.mesh import Degrees, model_parts
from trainer.data.loader import RowLoader, Share
from trainer.data.source import build_loader
from trainer.distributed import seed_everything, seed_step
from trainer.dry_run import world_size
from trainer.errors import DataError
from trainer.models.decoder import draw, init_weights, model_args
from trainer.parallel.mesh import build_world
from trainer.parallel.pipeline import build_step, join_parts
from trainer.parallel.plan import build_parts
from trainer.step import Batch, build_optimizer, lr_factor, set_lr

logger = logging.getLogger("root")


def local_run(config: JobConfig) -> None:
    """Run one step of all ranks in this process with `LocalTensor`, and log its loss and gradient norm.

    Raises:
        ConfigError: The configuration does not fit a job of this size, or this mode does not support it.
    """
    size, started = world_size(), time.perf_counter()
    degrees = checked_mesh(config, size)
    logger.info("Local tensors of all ranks (%d) in this process: %s %s", size, config.model.name, config.model.flavor)
    batches = _first_batches(config, accumulation_steps(config.training, degrees))
    # No message is sent: local tensors carry out the collectives in this process.
    dist.init_process_group("fake", rank=0, world_size=size)
    seed = seed_everything(config.debug, torch.device("cpu"))
    with LocalTensorMode(size):
        loss, norm = _one_step(config, degrees, size, seed, batches)
    values = sorted({float(part) for part in parts_of(loss)})
    logger.info("step:  1  loss: %8.5f  grad_norm: %7.4f", values[0], float(parts_of(norm)[0]))
    if len(values) > 1:
        logger.warning("the ranks disagree about the loss: %s", values)
    logger.info("One step of all ranks completed in %.1f s", time.perf_counter() - started)


def _first_batches(config: JobConfig, count: int) -> list[Batch]:
    """Return the first `count` batches of the training data; with tensor parallelism all ranks have the same batches.

    Raises:
        DataError: The data are rows for fine-tuning, whose attention this mode does not support.
    """
    training = config.training
    loader = build_loader(config, training, Share(training.local_batch_size), training.seq_len)
    if isinstance(loader, RowLoader):
        raise DataError("rows for fine-tuning do not go with comm.mode local_tensor", "train on processes: --nproc N")
    return list(islice(loader, count))


def _one_step(config: JobConfig, degrees: Degrees, size: int, seed: int, batches: list[Batch]) -> tuple[Tensor, Tensor]:
    """Run one step on `batches` and return (loss, gradient norm), each as a `LocalTensor`; `size` is the world size."""
    world, args = build_world(degrees, 0, size, torch.device("cpu")), model_args(config)
    models = build_parts(config, world, args, model_parts(0, args.n_layers, config.parallelism))
    for model in models:
        model.to_empty(device=world.device)
        init_weights(model, seed, _equal_on_all_ranks)
    whole_model = join_parts(models)
    optimizer = build_optimizer(whole_model, config.optimizer)
    set_lr(optimizer, config.optimizer.lr * lr_factor(1, config.training.steps, config.lr_scheduler))
    compute = build_step(config, world, models, whole_model, optimizer, lambda _: nullcontext())
    seed_step(seed, world.stage, 1)
    losses = [compute.forward_backward((copied(inputs), copied(labels))) for inputs, labels in batches]
    return torch.stack(losses).sum(), compute.update()


def _equal_on_all_ranks(name: str, parameter: Tensor, n_layers: int, seed: int) -> Tensor:
    """Return the initial values of a parameter as a `LocalTensor` that has the same values on all ranks.

    The values depend only on the parameter's name and shape, the model's number of layers, and the seed.
    """
    with maybe_disable_local_tensor_mode():
        values = draw(name, torch.empty(parameter.shape, dtype=parameter.dtype), n_layers, seed)
    return copied(values)


def copied(values: Tensor) -> Tensor:
    # Inside LocalTensorMode, this makes one tensor for each rank.
    local = torch.empty(values.shape, dtype=values.dtype)
    return local.copy_(values)


def parts_of(tensor: Tensor) -> list[Tensor]:
    return list(tensor._local_tensors.values()) if isinstance(tensor, LocalTensor) else [tensor]  # noqa: SLF001
