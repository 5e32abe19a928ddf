"""The transformers package's names of the settings and weights of Qwen3 with experts."""

from collections.abc import Iterator, Mapping

from trainer.config.hf_format import ATTENTION, EACH, Format, Layout, Place, feed_forward
from trainer.models.qwen3.hf_format import NORMS
from trainer.models.qwen3_moe.flavors import ModelArgs

_EXPERTS = {
    "moe.router.gate.weight": Place("mlp.gate.weight"),
    "moe.experts.w1": Place(f"mlp.experts.{EACH}.gate_proj.weight", Layout.LISTED),
    "moe.experts.w2": Place(f"mlp.experts.{EACH}.down_proj.weight", Layout.LISTED),
    "moe.experts.w3": Place(f"mlp.experts.{EACH}.up_proj.weight", Layout.LISTED),
}


def _unsupported(described: Mapping[str, object]) -> Iterator[str]:
    """Yield the key for the number of experts per token if a config.json asks for more experts than there are."""
    chosen, count = described.get("num_experts_per_tok"), described.get("num_experts")
    if isinstance(chosen, int) and isinstance(count, int) and chosen > count:
        yield "num_experts_per_tok"


FORMAT = Format(
    "qwen3_moe",
    "Qwen3MoeForCausalLM",
    ModelArgs,
    {**ATTENTION, **NORMS, **_EXPERTS, **feed_forward("feed_forward", "mlp")},
    settings={
        "expert_dim": "moe_intermediate_size", "n_experts": "num_experts", "top_k": "num_experts_per_tok",
        "moe_every": "decoder_sparse_step", "norm_weights": "norm_topk_prob",
    },
    omitted={"moe_every": 1, "norm_weights": False},
    # Version 5 of the transformers package writes this name, published models have the other.
    aliases={"num_local_experts": "num_experts"},
    fixed={"hidden_act": "silu", "attention_bias": False, "use_sliding_window": False, "mlp_only_layers": []},
    unsupported=_unsupported,
)  # fmt: skip
