"""The transformers package's names of the settings and weights of Llama 3."""

from trainer.config.hf_format import ATTENTION, Format, feed_forward
from trainer.config.shape import ModelArgs

FORMAT = Format(
    "llama",
    "LlamaForCausalLM",
    ModelArgs,
    {**ATTENTION, **feed_forward("feed_forward", "mlp")},
    fixed={"hidden_act": "silu", "attention_bias": False, "mlp_bias": False},
)
