"""Configurations of Qwen3 with experts that are ready to use: `--module qwen3_moe --config NAME`."""

from dataclasses import dataclass

from trainer.config.hf_format import ATTENTION, LISTED_EXPERTS, Format, exceeding, feed_forward
from trainer.config.sections import ActivationCheckpoint, JobConfig, LRScheduler, Model, Training
from trainer.models.llama3.config_registry import llama3_debugmodel
from trainer.models.llama4.config_registry import ModelArgs as MixtureArgs
from trainer.models.qwen3.config_registry import NORMS


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


@dataclass(frozen=True)
class ModelArgs(MixtureArgs):
    """The shape of a Qwen3 model with experts; it has no shared expert."""

    dim: int = 2048
    n_heads: int = 32
    n_kv_heads: int = 4
    hidden_dim: int = 6144
    vocab_size: int = 151936
    norm_eps: float = 1e-6
    rope_theta: float = 1e6
    n_experts: int = 128
    top_k: int = 8
    expert_dim: int = 768
    norm_weights: bool = True
    """Whether the weights of a token's experts are scaled so that they sum to 1."""


FLAVORS = {
    # As small as Qwen3's; the second and the fourth layer have experts.
    "debugmodel": ModelArgs(
        64, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=32, hidden_dim=192, vocab_size=320, n_experts=8, top_k=2,
        expert_dim=64, moe_every=2,
    ),
    "30B-A3B": ModelArgs(),
    # The base of the angles is that of the newer weights (2507), as in torchtitan; those of May 2025 have 1e6.
    "235B-A22B": ModelArgs(4096, n_layers=94, n_heads=64, hidden_dim=12288, expert_dim=1536, rope_theta=5e6),
}  # fmt: skip


FORMAT = Format(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    ModelArgs,
    {**ATTENTION, **NORMS, **LISTED_EXPERTS, **feed_forward("feed_forward", "mlp")},
    settings={
        "expert_dim": "moe_intermediate_size", "n_experts": "num_experts", "top_k": "num_experts_per_tok",
        "moe_every": "decoder_sparse_step", "norm_weights": "norm_topk_prob",
    },
    omitted={"moe_every": 1, "norm_weights": False},
    # Version 5 of the transformers package writes this name, published models have the other.
    aliases={"num_local_experts": "num_experts"},
    fixed={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False, "mlp_only_layers": []},
    unsupported=lambda described: exceeding(described, "num_experts_per_tok", "num_experts"),
)  # fmt: skip
