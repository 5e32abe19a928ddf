"""Configurations of Qwen3 that are ready to use: `--module qwen3 --config NAME`."""

from dataclasses import dataclass, replace

from trainer.config.hf_format import ATTENTION, Format, Layout, Place, feed_forward
from trainer.config.sections import ActivationCheckpoint, JobConfig, LRScheduler, Model, Training
from trainer.config.shape import ModelArgs as DenseArgs
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


@dataclass(frozen=True)
class ModelArgs(DenseArgs):
    """The shape of a Qwen3 model, whose `head_dim` may be more or less than `dim` divided by the number of heads."""

    dim: int = 1024
    n_layers: int = 28
    n_heads: int = 16
    hidden_dim: int = 3072
    vocab_size: int = 151936
    norm_eps: float = 1e-6
    rope_theta: float = 1e6


# As small as Llama 3's; all heads together are twice as wide as the model, as in 0.6B.
SMALL = ModelArgs(64, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=32, hidden_dim=192, vocab_size=320)
FLAVORS = {
    "debugmodel": replace(SMALL, enable_weight_tying=True),
    "debugmodel_untied": SMALL,
    "0.6B": ModelArgs(enable_weight_tying=True),
    "1.7B": ModelArgs(2048, hidden_dim=6144, enable_weight_tying=True),
    "4B": ModelArgs(2560, n_layers=36, n_heads=32, hidden_dim=9728, enable_weight_tying=True),
    "8B": ModelArgs(4096, n_layers=36, n_heads=32, hidden_dim=12288),
    "14B": ModelArgs(5120, n_layers=40, n_heads=40, hidden_dim=17408),
    "32B": ModelArgs(5120, n_layers=64, n_heads=64, hidden_dim=25600),
}


# The weight of a norm has an element for each feature, so its order is that of the rotary features.
NORMS = {f"attention.{name}.weight": Place(f"self_attn.{name}.weight", Layout.ROTARY) for name in ("q_norm", "k_norm")}
FORMAT = Format(
    "qwen3",
    "Qwen3ForCausalLM",
    ModelArgs,
    {**ATTENTION, **NORMS, **feed_forward("feed_forward", "mlp")},
    omitted={"head_dim": 128},
    fixed={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False},
)
