"""The transformers package's names of the settings and weights of Qwen3."""

from trainer.config.hf_format import ATTENTION, Format, Layout, Place, feed_forward
from trainer.models.qwen3.flavors import ModelArgs

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
