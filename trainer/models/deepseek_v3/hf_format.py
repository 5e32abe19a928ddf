"""The transformers package's names of the settings and weights of DeepSeek-V3."""

from collections.abc import Iterator, Mapping

from trainer.config.hf_format import ATTENTION, EACH, Format, Layout, Place, feed_forward
from trainer.models.deepseek_v3.flavors import ModelArgs

# Neighbouring features are rotated together there, too.
_PROJECTIONS = {
    "wq": "q_proj", "wq_a": "q_a_proj", "q_norm": "q_a_layernorm", "wq_b": "q_b_proj",
    "wkv_a": "kv_a_proj_with_mqa", "kv_norm": "kv_a_layernorm", "wkv_b": "kv_b_proj",
}  # fmt: skip
_EXPERTS = {
    "moe.router.gate.weight": Place("mlp.gate.weight"),
    "moe.expert_bias": Place("mlp.gate.e_score_correction_bias"),
    "moe.experts.w1": Place(f"mlp.experts.{EACH}.gate_proj.weight", Layout.LISTED),
    "moe.experts.w2": Place(f"mlp.experts.{EACH}.down_proj.weight", Layout.LISTED),
    "moe.experts.w3": Place(f"mlp.experts.{EACH}.up_proj.weight", Layout.LISTED),
}


def _unsupported(described: Mapping[str, object]) -> Iterator[str]:
    """Yield the keys of a config.json with impossible values, such as more experts per token than experts in total."""
    for few, many in (("num_experts_per_tok", "n_routed_experts"), ("topk_group", "n_group")):
        chosen, count = described.get(few), described.get(many)
        if isinstance(chosen, int) and isinstance(count, int) and chosen > count:
            yield few
    experts, groups = described.get("n_routed_experts"), described.get("n_group")
    if isinstance(experts, int) and isinstance(groups, int) and groups > 0 and experts % groups:
        yield "n_group"


FORMAT = Format(
    "deepseek_v3",
    "DeepseekV3ForCausalLM",
    ModelArgs,
    {
        **ATTENTION, **_EXPERTS, **feed_forward("feed_forward", "mlp"),
        **feed_forward("moe.shared_experts", "mlp.shared_experts"),
        **{f"attention.{ours}.weight": Place(f"self_attn.{theirs}.weight") for ours, theirs in _PROJECTIONS.items()},
    },
    settings={
        "expert_dim": "moe_intermediate_size", "n_experts": "n_routed_experts", "top_k": "num_experts_per_tok",
        "q_lora_rank": "q_lora_rank", "kv_lora_rank": "kv_lora_rank", "plain_head_dim": "qk_nope_head_dim",
        "rope_head_dim": "qk_rope_head_dim", "v_head_dim": "v_head_dim", "n_dense_layers": "first_k_dense_replace",
        "n_shared_experts": "n_shared_experts", "n_groups": "n_group", "top_groups": "topk_group",
        "route_scale": "routed_scaling_factor",
    },
    omitted={"q_lora_rank": None},
    derived=("head_dim",),
    fixed={
        "hidden_act": "silu", "attention_bias": False, "norm_topk_prob": True, "rope_interleave": True,
        "scoring_func": "sigmoid", "moe_layer_freq": 1,
    },
    unsupported=_unsupported,
)  # fmt: skip
