"""The transformers package's names of the settings and weights of Llama 4's text model."""

from collections.abc import Iterator, Mapping

from trainer.config.hf_format import ATTENTION, Format, Layout, Place, feed_forward
from trainer.config.shape import ModelArgs as DenseArgs
from trainer.models.llama4.flavors import ModelArgs

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
    """Return the settings of config.json for each layer: all have rotary positions and attend to all earlier tokens."""
    return {"no_rope_layers": [1] * args.n_layers, "layer_types": ["full_attention"] * args.n_layers}


def _unsupported(described: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of a config.json that describe layers which our model does not have."""
    # Without these keys, the transformers package takes other values than those here.
    yield from (key for key in ("use_qk_norm", "attn_temperature_tuning") if key not in described)
    rotary, experts = described.get("no_rope_layers"), described.get("moe_layers")
    if not isinstance(rotary, list) or not rotary or not all(rotary):
        yield "no_rope_layers"
    chosen, count = described.get("num_experts_per_tok"), described.get("num_local_experts")
    if isinstance(chosen, int) and isinstance(count, int) and chosen > count:
        yield "num_experts_per_tok"
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
