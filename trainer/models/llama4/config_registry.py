"""Configurations of Llama 4 that are ready to use: `--module llama4 --config NAME`."""

from trainer.config.sections import ActivationCheckpoint, JobConfig, LRScheduler, Metrics, Model, Training
from trainer.models.llama3.config_registry import llama3_debugmodel


def llama4_debugmodel() -> JobConfig:
    config = llama3_debugmodel()
    config.model = Model("llama4", "debugmodel")
    return config


def llama4_17bx16e() -> JobConfig:
    """Return the configuration of the published 16-expert model (Scout), as torchtitan sets it up."""
    return large("17bx16e", batch=8)


def llama4_17bx128e() -> JobConfig:
    """Return the configuration of the published 128-expert model (Maverick), as torchtitan sets it up."""
    return large("17bx128e", batch=1)


def large(flavor: str, batch: int) -> JobConfig:
    """Return the configuration of a model that needs many devices; `batch` is sequences per rank."""
    config = JobConfig(model=Model("llama4", flavor), metrics=Metrics(), lr_scheduler=LRScheduler(min_lr_factor=0.1))
    config.optimizer.lr, config.lr_scheduler.warmup_steps = 4e-3, 600
    config.training = Training(local_batch_size=batch, seq_len=8192, steps=3000)
    config.activation_checkpoint = ActivationCheckpoint(mode="full")
    return config
