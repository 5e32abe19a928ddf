"""Configurations of DeepSeek-V3 that are ready to use: `--module deepseek_v3 --config NAME`."""

from trainer.config.sections import ActivationCheckpoint, JobConfig, LRScheduler, Model, Training
from trainer.models.llama3.config_registry import llama3_debugmodel


def deepseek_v3_debugmodel() -> JobConfig:
    config = llama3_debugmodel()
    config.model = Model("deepseek_v3", "debugmodel")
    return config


def deepseek_v3_671b() -> JobConfig:
    """Return the configuration of the published 671B model, with torchtitan's batch size and learning rate."""
    config = JobConfig(model=Model("deepseek_v3", "671B"), activation_checkpoint=ActivationCheckpoint("full"))
    config.optimizer.lr = 2.2e-4
    config.lr_scheduler = LRScheduler(warmup_steps=2000, decay_ratio=0.8, min_lr_factor=0.1)
    config.training = Training(local_batch_size=4, seq_len=4096, steps=10000)
    return config
