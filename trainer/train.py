"""The training loop."""

import gc
import json
import logging
import time
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint import Checkpointer, TrainState
from trainer.config import JobConfig, as_dict
from trainer.data.loader import Loader, Share
from trainer.data.text import documents
from trainer.distributed import join, seed_everything, set_timeouts
from trainer.faults import Faults
from trainer.metrics import Measured, Meter
from trainer.models.decoder import build_model
from trainer.optim import build_optimizer, lr_factor, set_lr
from trainer.parallel.plan import parallelize
from trainer.run_file import RunFile, set_aside
from trainer.step import Batch, OptimizerStep
from workbench.recorders import RecorderOptions, Recorders
from workbench.recorders.timing.step_log import StepLine

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
        gc.disable()

        self.model = build_model(config)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.meter = Meter(config, self.world, self.model.flops_per_token(config.training.seq_len))
        parallelize(self.model, config, self.world, self.seed)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.loader = self.build_loader()
        self.batches = iter(self.loader)

        self.state = TrainState(self.model, self.optimizer, self.loader)
        self.checkpointer = Checkpointer(config, self.state)
        self.loaded = self.checkpointer.load()
        self.compute = OptimizerStep(config, self.world, self.model, self.optimizer, self.phase)
        self.run_file = RunFile(config, self.world, {"parameters": self.parameters, **self.meter.speed})
        self.recorders = Recorders(options, model=self.model, optimizer=self.optimizer)
        self.faults = Faults(config.faults, model=self.model, timeout_s=config.comm.train_timeout_seconds)

    def build_loader(self) -> Loader:
        """This rank's share of the data. Without a seed the text is still the same in each run, so that runs resume."""
        training, world = self.config.training, self.world
        share = Share(training.local_batch_size, world.data_rank, world.degrees.data_parallel)
        return Loader(documents(training, self.config.debug.seed or 0), training.seq_len, share)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Note what runs now. The recorders come last, after all that may refuse the configuration."""
        return self.recorders.phase(name)

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
            self.tell_timing(step, last)
        self.checkpointer.wait()
        logger.info("Training completed")
        if self.config.debug.memory_breakdown and self.world.rank == 0 and self.recorders.memory:
            logger.info(self.recorders.memory.breakdown())

    def tell_timing(self, step: int, last: int) -> None:
        """Print where the time went, if that is asked for and due."""
        freq = self.config.debug.timing_breakdown_freq
        if self.recorders.steps.timing and (step == last or (freq and step % freq == 0)):
            logger.info(self.recorders.steps.breakdown(last=step == last))

    def train_step(self, step: int, line: StepLine) -> None:
        """One step of the optimizer over `accumulation` batches."""
        self.faults.before_step(step)
        self.collect_garbage(step, line)
        lr = self.config.optimizer.lr * lr_factor(step, self.config.training.steps, self.config.lr_scheduler)
        set_lr(self.optimizer, lr)
        loss = torch.zeros((), device=self.world.device)
        for _ in range(self.compute.accumulation):
            loss += self.compute.forward_backward(self.next_batch(step))
        grad_norm = self.compute.update()
        self.meter.stepped(self.tokens_per_step)
        line.update(tokens=self.tokens_per_step)
        if step == 1 or step % self.config.metrics.log_freq == 0:
            self.log(line, step, lr, loss, grad_norm)
        with self.phase("ckpt_save"):
            if self.checkpointer.save(step):
                line.tag("checkpoint")

    @property
    def tokens_per_step(self) -> int:
        """Of this rank."""
        training = self.config.training
        return self.compute.accumulation * training.local_batch_size * training.seq_len

    def collect_garbage(self, step: int, line: StepLine) -> None:
        """Collect at the same steps on all ranks, so that they do not wait for each other's collections in turn."""
        if step == 1 or step % self.config.training.gc_freq == 0:
            line.tag("gc")
            with self.phase("gc"):
                gc.collect(1)

    def next_batch(self, step: int) -> Batch:
        """Inputs and labels on the device."""
        started = time.perf_counter()
        with self.phase("data_wait"):
            inputs, labels = self.faults.on_batch(step, next(self.batches))
        self.meter.waited(time.perf_counter() - started)
        with self.phase("h2d"):
            device = self.world.device
            return inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def log(self, line: StepLine, step: int, lr: float, loss: Tensor, grad_norm: Tensor) -> None:
        """Agree on the loss with the other ranks and report it."""
        with self.phase("loss_sync"):
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
        with self.phase("log"):
            self.meter.report(measured)

    def close(self) -> None:
        """End cleanly."""
        self.recorders.close()
        self.meter.close()
        self.run_file.end(self.config.training.steps)


def recorder_options(config: JobConfig) -> RecorderOptions:
    """What the recorders need to know of the configuration."""
    profiling, comm = config.profiling, config.comm
    if config.debug.memory_breakdown:
        profiling = replace(profiling, enable_memory_snapshot=True)
    return RecorderOptions(
        folder=config.job.dump_folder,
        **asdict(profiling),
        trace_buf_size=comm.trace_buf_size,
        init_timeout_s=comm.init_timeout_seconds,
        train_timeout_s=comm.train_timeout_seconds,
        timing_breakdown=config.debug.timing_breakdown,
    )
