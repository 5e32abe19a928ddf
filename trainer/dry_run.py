"""Run one step of any job in one process, with a fake process group and tensors that have a shape but no values.

This checks a configuration before the devices are available: keys, mesh, model, parallelism, optimizer, and each
operation of a step on one rank. Nothing that depends on values can be checked, such as the loss.
"""

import logging
import multiprocessing
import os
import time

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from trainer.config import JobConfig
from trainer.config.checks import checked_mesh
from trainer.config.mesh import model_parts
from trainer.errors import ConfigError, TrainerError
from trainer.estimate.rehearsal import (
    LocalProblem,
    Rehearsal,
    even_routing,
    join_fake,
    local_problem,
    routed_tokens,
    shallow_model,
    shortened,
)
from trainer.models.decoder import build_model, model_args
from trainer.parallel.mesh import World
from trainer.parallel.plan import build_parts
from trainer.step import lr_factor

logger = logging.getLogger("root")
_FORK = multiprocessing.get_context("fork")
WORLD_SIZE = "NGPU"
"""The environment variable with the number of ranks to simulate; torchtitan's scripts use the same name."""


def dry_run(config: JobConfig) -> None:
    """Run one step without tensor values for rank 0 of each pipeline stage, and log model, mesh and layers.

    `world_size` says how many ranks are simulated.

    Raises:
        ConfigError: The configuration does not fit a job with so many ranks.
    """
    size = world_size()
    degrees = checked_mesh(config, size)
    local = local_problem(config, size)
    mesh = " x ".join(f"{name} {degree}" for name, degree in degrees.described().items() if degree > 1) or "one rank"
    parameters = sum(parameter.numel() for parameter in build_model(local.config).parameters())
    name = f"{config.model.name} {config.model.flavor}"
    logger.info("Dry run of %s ranks in this process: %s, mesh %s", f"{size:,}", name, mesh)
    logger.info("Model: %s parameters", f"{parameters:,}")
    for note in local.notes:
        logger.info("Assumed: %s", note)
    for stage in range(degrees.pp):
        in_process(local, stage)
    training = config.training
    rate = config.optimizer.lr * lr_factor(1, training.steps, config.lr_scheduler)
    logger.info("step:  1  loss: none (no values)  learning rate: %.4g", rate)
    logger.info("Dry run completed: the configuration can be trained on %s ranks", f"{size:,}")


def world_size() -> int:
    """Return the number of ranks to simulate: the environment variable NGPU, else the launcher's WORLD_SIZE.

    Raises:
        ConfigError: The value is not a positive integer.
    """
    text = os.environ.get(WORLD_SIZE) or os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(
            f"{WORLD_SIZE} = {text!r} is not an integer from 1", f"set {WORLD_SIZE} to the number of ranks"
        )
    return int(text)


def in_process(local: LocalProblem, stage: int) -> None:
    """Run `_rehearse_stage` for pipeline stage `stage` of the job `local` in a new process, and wait for its end.

    DTensor caches process groups. A second stage in the same process would use groups that no longer exist.

    Raises:
        TrainerError: The process failed; it has printed the reason.
    """
    process = _FORK.Process(target=_rehearse_stage, args=(local, stage))
    process.start()
    process.join()
    if process.exitcode:
        raise TrainerError(f"the step of stage {stage} failed", "its error message is printed above")


def _rehearse_stage(local: LocalProblem, stage: int) -> None:
    """Build the model parts of pipeline stage `stage`, and run a step of the stage's first rank on fake tensors.

    `local` is the job, without settings that fake tensors do not support. The function logs how many layers ran, and
    how long the step took.
    """
    torch.set_num_threads(1)  # the threads of OpenMP are not there after a fork
    started = time.perf_counter()
    world = join_fake(local, 0, stage)
    layers, rehearsed = _step_without_values(local.config, world)
    seconds = time.perf_counter() - started
    alike = "" if layers == rehearsed else f" ({rehearsed} of them; the others are alike)"
    logger.info("Rank %d: a step of its %d layers%s in %.1f s", world.rank, layers, alike, seconds)


def _step_without_values(config: JobConfig, world: World) -> tuple[int, int]:
    """Run one step, and a validation if there is one, on fake tensors.

    Return (number of layers on this rank, number of layers that ran).

    If most layers are identical, only a few of them run.
    """
    args = model_args(config)
    parts = model_parts(world.stage, args.n_layers, config.parallelism)
    shallow = shallow_model(config, args, parts)
    shown = shortened(parts, shallow, shallow.few) if shallow else parts
    models = build_parts(config, world, args, shown)
    with FakeTensorMode(allow_non_fake_inputs=True), even_routing(routed_tokens(config, args, world.degrees)):
        for model in models:
            model.to_empty(device=world.device)
            model.reset_buffers()
        rehearsal = Rehearsal(config, world, models)
        rehearsal.step()
        if config.validation.enable:
            rehearsal.validate()
    return sum(len(part.layers) for part in parts), sum(len(part.layers) for part in shown)
