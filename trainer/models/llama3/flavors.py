"""The sizes of Llama 3."""

from trainer.models.llama3.model import Llama3, ModelArgs

FLAVORS = {
    # Small enough for a step of tens of milliseconds on a CPU; 320 = 256 bytes and specials, divisible by many degrees.
    "debugmodel": ModelArgs(
        64, n_layers=4, n_heads=4, n_kv_heads=2, vocab_size=320, ffn_dim_multiplier=1, multiple_of=32
    ),
    "8B": ModelArgs(),
    "70B": ModelArgs(8192, n_layers=80, n_heads=64, multiple_of=4096),
    "405B": ModelArgs(16384, n_layers=126, n_heads=128, ffn_dim_multiplier=1.2, multiple_of=4096),
}


def build(flavor: str, max_length: int) -> Llama3:
    """The model of this size, for sequences up to `max_length` tokens."""
    return Llama3(FLAVORS[flavor], max_length)
