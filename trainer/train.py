"""Train a model on one rank: `Trainer` builds the model, its data and its recorders, and runs the training loop."""

import gc
import json
import logging
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.checkpoint import Checkpointer, TrainState
from trainer.config import JobConfig, as_dict
from trainer.config.mesh import SPLIT_BACKWARD, schedule_name
from trainer.data.loader import Loader, RowLoader, Share
from trainer.data.source import build_loader
from trainer.distributed import join, seed_everything, seed_step, set_timeouts
from trainer.faults import Faults
from trainer.metrics import Meter, StepMetrics
from trainer.models.decoder import build_model, separate_documents
from trainer.parallel.pipeline import build_step, join_parts
from trainer.parallel.plan import parallelize
from trainer.resume import Agreement, made_with
from trainer.run_file import RunFile, move_earlier_run
from trainer.step import Batch, build_optimizer, lr_factor, set_lr
from trainer.validation import Validator
from workbench.recorders import RecorderOptions, Recorders
from workbench.recorders.files import write_json
from workbench.recorders.timing.step_log import StepLine
from workbench.recorders.values.finite_check import FiniteCheck
from workbench.recorders.values.recorder import Place, ValueRecorder
from workbench.recorders.values.tensor_recorder import TensorRecorder

logger = logging.getLogger("root")


class Trainer:
    """Trains a model on one rank; the constructor builds model, data, optimizer and recorders, `train` trains."""

    def __init__(self, config: JobConfig) -> None:
        self.config = config
        options = _recorder_options(config)
        move_earlier_run(config)
        # Before the process group is joined: PyTorch reads these variables when it creates the group.
        Recorders.prepare(options)
        self.world = join(config)
        self.seed = seed_everything(config.debug, self.world.device)
        # Python would collect at a different time on each rank, and the others would wait: see `collect_garbage`.
        gc.disable()

        whole_model = build_model(config)
        self.parameters = sum(p.numel() for p in whole_model.parameters())
        self.meter = Meter(config, self.world, whole_model.flops_per_token(config.training.seq_len))
        self.parts = parallelize(config, self.world, self.seed)
        self.model = join_parts(self.parts)
        self.optimizer = build_optimizer(self.model, config.optimizer)
        self.loader = self.build_loader()
        self.batches = iter(self.loader)
        self.attention = separate_documents(self.parts) if isinstance(self.loader, RowLoader) else None

        self.state = TrainState(self.model, self.optimizer, self.loader)
        made = made_with(config, self.world.degrees, self.loader, self.seed, torch.__version__)
        self.checkpointer = Checkpointer(config, self.state, made)
        is_seed = config.checkpoint.create_seed_checkpoint
        self.loaded = None if is_seed else self.checkpointer.load()
        # A resumed run without a configured seed continues with the seed of the run before.
        self.seed = self.checkpointer.made["seed"]
        self.compute = build_step(config, self.world, self.parts, self.model, self.optimizer, self.phase)
        self.validator = Validator(config, self.world, self.parts, self.compute) if config.validation.enable else None
        self.run_file = RunFile(config, self.world, self.facts())
        self.recorders = Recorders(options, model=self.model, optimizer=self.optimizer)
        self.values = self.value_recorder()
        self.finite = FiniteCheck(self.parts, config.job.dump_folder) if config.debug.check_finite else None
        self.faults = Faults(config.faults, model=self.parts[-1], timeout_s=config.comm.train_timeout_seconds)

    def value_recorder(self) -> ValueRecorder | None:
        """Return the recorder that debug.record_values or debug.record_tensors turns on; None if both are off.

        The recorder writes sums over tensors in each step. The sums are scaled by the rank's position in the mesh, so
        that runs on different meshes can be compared.
        """
        debug = self.config.debug
        if not (debug.record_values or debug.record_tensors):
            return None
        degrees, is_last = self.world.degrees, any(part.part.last for part in self.parts) or not self.world.pipeline
        # Schedules that divide the backward pass run its hooks twice.
        is_split = self.world.pipeline and schedule_name(self.config.parallelism) in SPLIT_BACKWARD
        share = None if is_split else 1 / (degrees.data_parallel * degrees.cp)
        # Experts that are split see all tokens on each rank, and give terms of a sum.
        opaque = ("moe",) if degrees.tp > 1 and degrees.ep == 1 else ()
        place = Place(self.world.size // degrees.pp, share, is_last, opaque)
        recorder = TensorRecorder if debug.record_tensors else ValueRecorder
        return recorder(self.config.job.dump_folder, self.parts, place)

    def facts(self) -> dict[str, object]:
        """Return what run.json stores besides the configuration.

        It is the number of parameters, the constants from which MFU is computed (FLOPs per token and the peak FLOPs of
        the device), the seed, the checkpoint that the run was resumed from, and notes on loading it.
        """
        audit = self.checkpointer.audit
        resumed = {"path": str(self.loaded), "step": self.state.step, **(audit.as_json() if audit else {})}
        return {
            "parameters": self.parameters,
            **self.meter.utilisation_constants,
            "seed": self.seed,
            "resumed": resumed if self.loaded else None,
            "notes": self.checkpointer.notes,
        }

    def build_loader(self) -> Loader:
        """Return the loader of this rank's share of the training data.

        Synthetic text is the same in each run, even if no seed is configured, so that runs can resume.
        """
        training, world = self.config.training, self.world
        positions = self.parts[0].positions if world.context else None
        share = Share(training.local_batch_size, world.data_rank, world.degrees.data_parallel, positions)
        return build_loader(self.config, training, share, training.seq_len)

    def phase(self, name: str) -> AbstractContextManager[None]:
        """Return a context that records the code inside it as one phase of the step, such as `fwd`."""
        return self.recorders.phase(name)

    def announce(self) -> None:
        """Log the model, device, mesh, data, seed and loaded checkpoint, before the first step."""
        config, degrees = self.config, self.world.degrees
        logger.info("Starting job: %s", config.job.description)
        if config.job.print_config:
            logger.info("Running with configs: %s", json.dumps(as_dict(config)))
        if config.job.save_config_file and self.world.rank == 0:
            write_json(Path(config.job.dump_folder, config.job.save_config_file), as_dict(config))
        name, device = f"{config.model.name} {config.model.flavor}", self.world.device
        logger.info(
            "Model %s: %s parameters, on %s, mesh %s", name, f"{self.parameters:,}", device.type, degrees.described()
        )
        logger.info("Data: %s; seed %d", config.training.dataset_path or config.training.dataset, self.seed)
        if self.loaded and not self.checkpointer.audit:
            logger.info("Loaded %s, going on after step %d", self.loaded, self.state.step)
        goes_on = self.checkpointer.audit and self.checkpointer.audit.agreement is not Agreement.DIFFERENT
        for note in self.checkpointer.notes:
            logger.log(logging.INFO if goes_on else logging.WARNING, note)

    def train(self) -> None:
        """Run all remaining steps, or only save the seed checkpoint if the configuration says so."""
        self.announce()
        if self.config.checkpoint.create_seed_checkpoint:
            logger.info("Saved the seed checkpoint %s", self.checkpointer.save_seed())
            return
        first, last = self.state.step + 1, self.config.training.steps
        for step in range(first, last + 1):
            if self.finite:
                self.finite.step = step
            with self.recorders.step(step) as line:
                if step == first:
                    line.tag("first")
                with self.values.step(step) if self.values else nullcontext():
                    self.train_step(step, line)
                self.validate(step, line)
            if step == first:
                # The first step may compile and connect for minutes; after it a stall is worth an alarm.
                set_timeouts(self.config.comm.train_timeout_seconds)
            self.print_timing_table(step, last)
        self.checkpointer.wait()
        logger.info("Training completed")
        if self.config.debug.memory_breakdown and self.world.rank == 0 and self.recorders.memory:
            logger.info(self.recorders.memory.breakdown())

    def validate(self, step: int, line: StepLine) -> None:
        """Compute and log the validation loss if it is due after `step`; `line` is the step's entry in the step log."""
        if self.validator and self.validator.is_due(step):
            line.tag("eval")
            with self.phase("eval"):
                loss = self.validator.loss()
            self.meter.report_validation(step, loss)

    def print_timing_table(self, step: int, last: int) -> None:
        freq = self.config.debug.timing_breakdown_freq
        if self.recorders.steps.timing and (step == last or (freq and step % freq == 0)):
            logger.info(self.recorders.steps.breakdown(last=step == last))

    def train_step(self, step: int, line: StepLine) -> None:
        """Run one optimizer step over `accumulation_steps` batches, and add its numbers to `line` of the step log."""
        self.faults.before_step(step)
        seed_step(self.seed, self.world.stage, step)
        self.collect_garbage(step, line)
        lr = self.config.optimizer.lr * lr_factor(step, self.config.training.steps, self.config.lr_scheduler)
        set_lr(self.optimizer, lr)
        # The sum stays on the device: reading each loss would wait for all queued work.
        loss = torch.zeros((), device=self.world.device)
        self.compute.count_labels(self.loader)
        for _ in range(self.compute.accumulation_steps):
            loss += self.compute.forward_backward(self.next_batch(step))
        # Before the update, which clips the gradients and then frees them.
        if self.values:
            self.values.gradients()
        if isinstance(self.values, TensorRecorder):
            self.values.optimizer(self.optimizer)
        grad_norm = self.compute.update()
        self.meter.add_step(self.tokens_per_step)
        line.update(tokens=round(self.tokens_per_step))
        if step == 1 or step % self.config.metrics.log_freq == 0:
            self.log(line, step, lr, loss, grad_norm)
        with self.phase("ckpt_save"):
            if self.checkpointer.save(step):
                line.tag("checkpoint")

    @property
    def tokens_per_step(self) -> float:
        """The number of tokens that this rank counts for one step.

        Ranks that compute on the same batch each count an equal share of its tokens. So the sum over all ranks is the
        total.
        """
        training = self.config.training
        tokens = self.compute.accumulation_steps * training.local_batch_size * training.seq_len
        return tokens / self.world.degrees.per_batch

    def collect_garbage(self, step: int, line: StepLine) -> None:
        """Run Python's garbage collector if it is due; all ranks do so in the same steps.

        If each rank paused in a different step, all other ranks would wait for it each time.
        """
        if step == 1 or step % self.config.training.gc_freq == 0:
            line.tag("gc")
            with self.phase("gc"):
                # As in torchtitan, not the oldest generation: it has all the objects of torch, and takes long.
                gc.collect(1)

    def next_batch(self, step: int) -> Batch:
        """Return (inputs, labels) of the next batch on the device, (B, T) int64 each."""
        started = time.perf_counter()
        with self.phase("data_wait"):
            inputs, labels = self.faults.on_batch(step, next(self.batches))
            if self.values:
                self.values.data(inputs, labels, self.world.degrees.tp * self.world.degrees.pp)
        self.meter.add_data_wait(time.perf_counter() - started)
        with self.phase("h2d"):
            device = self.world.device
            if self.attention and self.loader.documents is not None:
                self.attention.separate(self.loader.documents.to(device, non_blocking=True))
            return inputs.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def log(self, line: StepLine, step: int, lr: float, loss: Tensor, grad_norm: Tensor) -> None:
        """Average the loss over all ranks and write the step's numbers to the step log and the metrics."""
        with self.phase("loss_sync"):
            mean, highest = loss.clone(), loss.clone()
            dist.all_reduce(mean, dist.ReduceOp.AVG)
            # Of each pipeline one rank knows the loss; the others have 0.
            mean *= self.world.degrees.pp
            dist.all_reduce(highest, dist.ReduceOp.MAX)
            metrics = StepMetrics(
                step=step,
                loss=float(mean),
                max_loss=float(highest),
                grad_norm=float(grad_norm),
                lr=lr,
                tokens_seen=self.loader.consumed * self.config.training.seq_len,
            )
        line.update(
            loss=metrics.loss, local_loss=float(loss) if self.compute.knows_loss else None, grad_norm=metrics.grad_norm
        )
        with self.phase("log"):
            self.meter.report(metrics)

    def close(self) -> None:
        """Close the recorders and logs, and write to `run.json` that the run ended cleanly."""
        self.recorders.close()
        for check in (self.values, self.finite):
            if check:
                check.close()
        self.meter.close()
        self.run_file.end(0 if self.config.checkpoint.create_seed_checkpoint else self.config.training.steps)


def _recorder_options(config: JobConfig) -> RecorderOptions:
    """Return the options of the recorders, as the configuration sets them."""
    profiling, comm, breakdown = config.profiling, config.comm, config.debug.memory_breakdown
    if breakdown:
        profiling = replace(profiling, enable_memory_snapshot=True)
    return RecorderOptions(
        folder=config.job.dump_folder,
        **asdict(profiling),
        memory_until=config.training.steps if breakdown else None,
        trace_buf_size=comm.trace_buf_size,
        init_timeout_s=comm.init_timeout_seconds,
        train_timeout_s=comm.train_timeout_seconds,
        timing_breakdown=config.debug.timing_breakdown,
    )
