"""Configurations of Llama 4 that are ready to use: `--module llama4 --config NAME`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from trainer.config.hf_format import ATTENTION, Format, Layout, Place, exceeding, feed_forward
from trainer.config.sections import ActivationCheckpoint, JobConfig, LRScheduler, Metrics, Model, Training
from trainer.config.shape import ModelArgs as DenseArgs
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


@dataclass(frozen=True)
class ModelArgs(DenseArgs):
    """The shape of a Llama 4 model.

    In layers with experts, each token uses `top_k` of the `n_experts` experts, and the shared expert.
    """

    dim: int = 5120
    n_layers: int = 48
    n_heads: int = 40
    hidden_dim: int = 16384
    """Width of the feed-forward layers without experts."""
    vocab_size: int = 202048
    n_experts: int = 16
    top_k: int = 1
    expert_dim: int = 8192
    """Hidden width of an expert, and of the shared expert."""
    moe_every: int = 1
    """Every `moe_every`-th layer has experts; the others are dense."""


FLAVORS = {
    # As small as Llama 3's; two experts a token, so that what comes back is a sum.
    "debugmodel": ModelArgs(
        64, n_layers=4, n_heads=4, n_kv_heads=2, head_dim=16, hidden_dim=192, vocab_size=320,
        n_experts=8, top_k=2, expert_dim=64, moe_every=2,
    ),
    "17bx16e": ModelArgs(),
    "17bx128e": ModelArgs(n_experts=128, moe_every=2),
}  # fmt: skip


# Here, too, neighbouring features are rotated together.
_PROJECTIONS = {
    "attention.wq.weight": Place("self_attn.q_proj.weight"),
    "attention.wk.weight": Place("self_attn.k_proj.weight"),
}
_EXPERTS = {
    "moe.router.gate.weight": Place("feed_forward.router.weight"),
    "moe.experts.w1": Place("feed_forward.experts.gate_up_proj", Layout.GATE),
    "moe.experts.w3": Place("feed_forward.experts.gate_up_proj", Layout.UP),
    "moe.experts.w2": Place("feed_forward.experts.down_proj", Layout.TRANSPOSED),
}


def _by_layer(args: DenseArgs) -> dict[str, object]:
    return {"no_rope_layers": [1] * args.n_layers, "layer_types": ["full_attention"] * args.n_layers}


def _unsupported(described: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of a config.json that describe layers which our model does not have."""
    # Without these keys, the transformers package takes other values than those here.
    yield from (key for key in ("use_qk_norm", "attn_temperature_tuning") if key not in described)
    rotary, experts = described.get("no_rope_layers"), described.get("moe_layers")
    if not isinstance(rotary, list) or not rotary or not all(rotary):
        yield "no_rope_layers"
    yield from exceeding(described, "num_experts_per_tok", "num_local_experts")
    layers, step = described.get("num_hidden_layers"), described.get("interleave_moe_layer_step")
    if isinstance(layers, int) and isinstance(step, int) and experts not in (None, [*range(step - 1, layers, step)]):
        yield "moe_layers"


FORMAT = Format(
    "llama4_text",
    "Llama4ForCausalLM",
    ModelArgs,
    {
        **ATTENTION, **_PROJECTIONS, **_EXPERTS, **feed_forward("feed_forward", "feed_forward"),
        **feed_forward("moe.shared_experts", "feed_forward.shared_expert"),
    },
    settings={
        "hidden_dim": "intermediate_size_mlp", "expert_dim": "intermediate_size", "n_experts": "num_local_experts",
        "top_k": "num_experts_per_tok", "moe_every": "interleave_moe_layer_step",
    },
    fixed={"hidden_act": "silu", "attention_bias": False, "use_qk_norm": False, "attn_temperature_tuning": False},
    by_layer=_by_layer,
    unsupported=_unsupported,
    attention_span="attention_chunk_size",
)  # fmt: skip
