"""The training loop."""

import contextlib
import gc
import json
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from trainer.checkpoint import Checkpointer, TrainState
from trainer.config import ConfigError, JobConfig, as_dict
from trainer.config.sections import Compile, Training
from trainer.data.loader import Loader, Share
from trainer.data.text import documents
from trainer.distributed import join, seed_everything, set_timeouts
from trainer.faults import Faults
from trainer.metrics import Measured, Meter
from trainer.models.decoder import build_model
from trainer.optim import build_optimizer, lr_factor, set_lr
from trainer.parallel.mesh import World
from trainer.parallel.plan import parallelize
from trainer.recorders import RecorderOptions, Recorders
from trainer.recorders.steps import StepLine
from trainer.run_file import RunFile, set_aside

logger = logging.getLogger("root")


class Trainer:
    """Everything that one rank needs to train, made in the order of the lines below."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        options = recorder_options(config)
        set_aside(config)
        Recorders.prepare(options)
        self.world = join(config)
        self.seed = seed_everything(config.debug, self.world.device)
        self.accumulation = accumulation(config.training, self.world)
        gc.disable()

        self.model = build_model(config)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.meter = Meter(config, self.world, self.model.flops_per_token(config.training.seq_len))
        parallelize(self.model, config, self.world, self.seed)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.loader = self.build_loader()
        self.batches = iter(self.loader)
        self.loss_fn = loss_function(config.compile)

        self.state = TrainState(self.model, self.optimizer, self.loader)
        self.checkpointer = Checkpointer(config, self.state)
        self.loaded = self.checkpointer.load()
        self.run_file = RunFile(config, self.world, self.parameters)
        self.recorders = Recorders(options, model=self.model, optimizer=self.optimizer)
        self.faults = Faults(config.faults, model=self.model, timeout_s=config.comm.train_timeout_seconds)

    def build_loader(self) -> Loader:
        """This rank's share of the data. Without a seed the text is still the same in each run, so that runs resume."""
        training, world = self.config.training, self.world
        share = Share(training.local_batch_size, world.data_rank, world.degrees.data_parallel)
        return Loader(documents(training, self.config.debug.seed or 0), training.seq_len, share)

    def announce(self) -> None:
        """Say what is about to run."""
        config, degrees = self.config, self.world.degrees
        logger.info("Starting job: %s", config.job.description)
        if config.job.print_config:
            logger.info("Running with configs: %s", json.dumps(as_dict(config)))
        if config.job.save_config_file and self.world.rank == 0:
            target = Path(config.job.dump_folder, config.job.save_config_file)
            target.write_text(json.dumps(as_dict(config), indent=2) + "\n", encoding="utf-8")
        name, device = f"{config.model.name} {config.model.flavor}", self.world.device
        logger.info(
            "Model %s: %s parameters, on %s, mesh %s", name, f"{self.parameters:,}", device.type, degrees.described()
        )
        logger.info("Data: %s; seed %d", config.training.dataset_path or config.training.dataset, self.seed)
        if self.loaded:
            logger.info("Loaded %s, going on after step %d", self.loaded, self.state.step)

    def train(self) -> None:
        """All steps that remain."""
        self.announce()
        first, last = self.state.step + 1, self.config.training.steps
        for step in range(first, last + 1):
            with self.recorders.step(step) as line:
                if step == first:
                    line.tag("first")
                self.train_step(step, line)
            if step == first:
                set_timeouts(self.config.comm.train_timeout_seconds)
        self.checkpointer.wait()
        logger.info("Training completed")

    def train_step(self, step: int, line: StepLine) -> None:
        """One step of the optimizer over `accumulation` batches."""
        self.faults.before_step(step)
        self.collect_garbage(step, line)
        lr = self.config.optimizer.lr * lr_factor(step, self.config.training.steps, self.config.lr_scheduler)
        set_lr(self.optimizer, lr)
        loss = torch.zeros((), device=self.world.device)
        for _ in range(self.accumulation):
            loss += self.forward_backward(self.next_batch(step))
        with self.recorders.phase("grad_clip"):
            grad_norm = self.clip_gradients()
        with self.recorders.phase("optim"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        self.meter.stepped(self.tokens_per_step)
        line.update(tokens=self.tokens_per_step)
        if step == 1 or step % self.config.metrics.log_freq == 0:
            self.log(line, step, lr, loss, grad_norm)
        with self.recorders.phase("ckpt_save"):
            if self.checkpointer.save(step):
                line.tag("checkpoint")

    @property
    def tokens_per_step(self) -> int:
        """Of this rank."""
        training = self.config.training
        return self.accumulation * training.local_batch_size * training.seq_len

    def collect_garbage(self, step: int, line: StepLine) -> None:
        """Collect at the same steps on all ranks, so that they do not wait for each other's collections in turn."""
        if step == 1 or step % self.config.training.gc_freq == 0:
            line.tag("gc")
            with self.recorders.phase("gc"):
                gc.collect(1)

    def next_batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Inputs and labels on the device, (B, T) int64 each."""
        started = time.perf_counter()
        with self.recorders.phase("data_wait"):
            inputs, labels = self.faults.on_batch(step, next(self.batches))
        self.meter.waited(time.perf_counter() - started)
        with self.recorders.phase("h2d"):
            device = self.world.device
            return inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def forward_backward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Add the gradients of one batch; returns its part of the step's loss."""
        inputs, labels = batch
        with self.recorders.phase("fwd"), self.autocast():
            loss = self.loss_fn(self.model(inputs), labels) / self.accumulation
        with self.recorders.phase("bwd"):
            loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def autocast(self) -> AbstractContextManager[None]:
        """Mixed precision where FSDP, which has its own, is not used."""
        if self.world.degrees.dp_shard > 1 or self.config.training.mixed_precision_param == "float32":
            return contextlib.nullcontext()
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16)

    def clip_gradients(self) -> Tensor:
        """Scale the gradients down to max_norm; returns their norm before."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        norm = get_total_norm(gradients)
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        clip_grads_with_norm_(self.model.parameters(), self.config.training.max_norm, norm)
        return norm

    def log(self, line: StepLine, step: int, lr: float, loss: Tensor, grad_norm: Tensor) -> None:
        """Agree on the loss with the other ranks and report it."""
        with self.recorders.phase("loss_sync"):
            mean, highest = loss.clone(), loss.clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            dist.all_reduce(highest, dist.ReduceOp.MAX)
            measured = Measured(
                step=step,
                loss=float(mean),
                max_loss=float(highest),
                grad_norm=float(grad_norm),
                lr=lr,
                tokens_seen=self.loader.consumed * self.config.training.seq_len,
            )
        line.update(loss=measured.loss, local_loss=float(loss), grad_norm=measured.grad_norm)
        with self.recorders.phase("log"):
            self.meter.report(measured)

    def close(self) -> None:
        """End cleanly."""
        self.recorders.close()
        self.meter.close()
        self.run_file.end(self.config.training.steps)


def recorder_options(config: JobConfig) -> RecorderOptions:
    """What the recorders need to know of the configuration."""
    profiling, comm = config.profiling, config.comm
    return RecorderOptions(
        folder=config.job.dump_folder,
        **asdict(profiling),
        trace_buf_size=comm.trace_buf_size,
        init_timeout_s=comm.init_timeout_seconds,
        train_timeout_s=comm.train_timeout_seconds,
    )


def accumulation(training: Training, world: World) -> int:
    """Batches of each rank in one step.

    Raises:
        ConfigError: global_batch_size is no multiple of what all ranks take at once.
    """
    at_once = training.local_batch_size * world.degrees.data_parallel
    wanted = at_once if training.global_batch_size < 0 else training.global_batch_size
    if wanted < at_once or wanted % at_once:
        raise ConfigError(
            f"global_batch_size {wanted} is no multiple of {at_once}, which all ranks take at once",
            "change global_batch_size, local_batch_size or the data-parallel degrees",
        )
    return wanted // at_once


def loss_function(config: Compile) -> Callable[[Tensor, Tensor], Tensor]:
    """Cross entropy, compiled if `config` says so."""
    if config.enable and "loss" in config.components:
        return torch.compile(mean_loss, backend=config.backend)
    return mean_loss


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean cross entropy of logits (B, T, V) and labels (B, T), in float32."""
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
