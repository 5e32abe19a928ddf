"""Configurations of Qwen3 with experts that are ready to use: `--module qwen3_moe --config NAME`."""

from trainer.config.sections import ActivationCheckpoint, JobConfig, LRScheduler, Model, Training
from trainer.models.llama3.config_registry import llama3_debugmodel


def qwen3_moe_debugmodel() -> JobConfig:
    config = llama3_debugmodel()
    config.model = Model("qwen3_moe", "debugmodel")
    return config


def qwen3_30b_a3b() -> JobConfig:
    """Return the configuration of the published 30B model, with torchtitan's batch size and learning rate."""
    config = JobConfig(model=Model("qwen3_moe", "30B-A3B"), activation_checkpoint=ActivationCheckpoint("full"))
    config.lr_scheduler = LRScheduler(warmup_steps=600)
    config.training = Training(local_batch_size=2, seq_len=4096, steps=3000)
    return config
