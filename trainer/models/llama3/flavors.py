"""The published sizes of Llama 3.1, and small sizes for tests."""

from trainer.config.hf_format import ATTENTION, Format, feed_forward
from trainer.config.shape import ModelArgs, RopeScaling

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
