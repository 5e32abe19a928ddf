"""Configurations of Llama 3 that are ready to use: `--module llama3 --config NAME`."""

from trainer.config.hf_format import ATTENTION, Format, feed_forward
from trainer.config.sections import JobConfig, LRScheduler, Metrics, Model, Training
from trainer.config.shape import ModelArgs, RopeScaling


def llama3_debugmodel() -> JobConfig:
    """Return the configuration of a tiny model for ten steps, which runs on a laptop."""
    return JobConfig(
        metrics=Metrics(log_freq=1),
        model=Model(flavor="debugmodel"),
        lr_scheduler=LRScheduler(warmup_steps=2, decay_ratio=0.8),
        training=Training(local_batch_size=4, seq_len=128, steps=10, mixed_precision_param="float32"),
    )


def llama3_8b() -> JobConfig:
    """Return the configuration of the published 8B model, with torchtitan's batch size and learning rate."""
    return large("8B", batch=1, length=8192)


def llama3_70b() -> JobConfig:
    """Return the configuration of the published 70B model, with torchtitan's batch size and learning rate."""
    return large("70B", batch=8, length=8192)


def llama3_405b() -> JobConfig:
    """Return the configuration of the published 405B model, with torchtitan's batch size and learning rate."""
    return large("405B", batch=2, length=8192)


def large(flavor: str, batch: int, length: int) -> JobConfig:
    """Return the configuration of a large model; `batch` is sequences per rank, `length` tokens per sequence."""
    config = JobConfig(model=Model(flavor=flavor))
    # Rates of torchtitan's train_configs for these sizes.
    config.optimizer.lr = {"8B": 3e-4, "70B": 1.5e-4, "405B": 8e-5}[flavor]
    config.training = Training(local_batch_size=batch, seq_len=length, steps=1000)
    config.activation_checkpoint.mode = "selective" if flavor == "8B" else "full"
    if flavor == "8B":
        config.activation_checkpoint.selective_ac_option = "op"
    return config


FLAVORS = {
    # Small enough for a step of tens of milliseconds on a CPU; 320 = 256 bytes and specials, divisible by many degrees.
    "debugmodel": ModelArgs(64, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=16, hidden_dim=192, vocab_size=320),
    "debugmodel_large": ModelArgs(
        256, n_layers=8, n_heads=8, n_kv_heads=4, head_dim=32, hidden_dim=704, vocab_size=320
    ),
    "8B": ModelArgs(rope_scaling=RopeScaling()),
    "70B": ModelArgs(8192, n_layers=80, n_heads=64, hidden_dim=28672, rope_scaling=RopeScaling()),
    "405B": ModelArgs(16384, n_layers=126, n_heads=128, hidden_dim=53248, rope_scaling=RopeScaling()),
}


FORMAT = Format(
    "llama",
    "LlamaForCausalLM",
    ModelArgs,
    {**ATTENTION, **feed_forward("feed_forward", "mlp")},
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
)
