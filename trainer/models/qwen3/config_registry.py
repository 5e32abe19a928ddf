"""Configurations of Qwen3 that are ready to use: `--module qwen3 --config NAME`."""

from trainer.config.sections import ActivationCheckpoint, JobConfig, LRScheduler, Model, Training
from trainer.models.llama3.config_registry import llama3_debugmodel


def qwen3_debugmodel() -> JobConfig:
    config = llama3_debugmodel()
    config.model = Model("qwen3", "debugmodel")
    return config


def qwen3_0_6b() -> JobConfig:
    """Return the configuration of the published 0.6B model, with torchtitan's batch size and learning rate."""
    config = large("0.6B", warmup=2, steps=10)
    config.optimizer.lr = 3e-4
    return config


def qwen3_1_7b() -> JobConfig:
    """Return the configuration of the published 1.7B model, with torchtitan's batch size and learning rate."""
    return large("1.7B", warmup=20, steps=100)


def qwen3_14b() -> JobConfig:
    """Return the configuration of the published 14B model, with torchtitan's batch size and learning rate."""
    return large("14B", warmup=600, steps=3000)


def qwen3_32b() -> JobConfig:
    """Return the configuration of the published 32B model, with torchtitan's batch size and learning rate."""
    return large("32B", warmup=600, steps=3000)


def large(flavor: str, warmup: int, steps: int) -> JobConfig:
    """Return the configuration of a published model, with activation checkpointing.

    The models 14B and 32B recompute all activations of a block. Smaller models keep the outputs of costly operations.
    """
    config = JobConfig(model=Model("qwen3", flavor), lr_scheduler=LRScheduler(warmup_steps=warmup))
    config.training = Training(local_batch_size=2 if flavor == "32B" else 4, seq_len=4096, steps=steps)
    config.activation_checkpoint = ActivationCheckpoint("full" if flavor in ("14B", "32B") else "selective")
    config.activation_checkpoint.selective_ac_option = "op"
    return config
