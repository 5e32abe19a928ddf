"""Write why PyTorch's attention operator takes its math kernel, and what to change so that a fused kernel fits."""

from collections.abc import Sequence
from typing import NamedTuple

from analyzers.traces.opportunity_model import FallbackReason

TITLE = "scaled_dot_product_attention takes its math kernel, which is not fused"


class Reason(NamedTuple):
    """The texts on one reason for the math kernel: what the trace shows, and what to change."""

    why: str
    next: str


REASONS = {
    FallbackReason.DIMENSIONS: Reason(
        "Its inputs do not have four dimensions, which the fused kernels need.",
        "Give it inputs of four dimensions: batch, heads, length, head dimension. For one head, add a dimension with"
        " .unsqueeze(1) and remove it afterwards.",
    ),
    FallbackReason.TYPE: Reason(
        "No fused kernel takes the types of its inputs: q, k and v must have one type, and on a GPU float64 is none of"
        " them.",
        "Cast q, k and v to one type: bfloat16 or float16, else float32.",
    ),
    FallbackReason.DROPOUT: Reason(
        "It is called with a dropout, which the fused kernel of a CPU does not have. The kernels of a GPU have it.",
        "On a CPU set the dropout of the attention to 0 (dropout_p, or attention_dropout of the model). Keep it if the"
        " job moves to a GPU.",
    ),
    FallbackReason.VALUE_SIZE: Reason(
        "The head dimension of its values differs from that of its queries and keys.",
        "Use one head dimension for q, k and v: pad the smaller one with zeros, and cut the result. Padded q and k need"
        " scale=1/sqrt(the size without zeros).",
    ),
    FallbackReason.HEAD_SIZE: Reason(
        "Its head dimension is not a multiple of 8 (16-bit types) or 4 (float32), and flash attention cannot take the"
        " call because of the mask, of float32 or of heads above 256.",
        "Use a head dimension that is a multiple of 8: pad q, k and v with zeros, set scale=1/sqrt(the size without"
        " zeros), and cut the result.",
    ),
    FallbackReason.GROUPED: Reason(
        "It is called with enable_gqa=True, which only flash attention has. The mask or float32 inputs rule that out.",
        "Use bfloat16 or float16 inputs and is_causal=True in place of a mask, or repeat k and v with"
        " .repeat_interleave() and leave enable_gqa out.",
    ),
    FallbackReason.MASK_GRADIENT: Reason(
        "It is called with a mask of numbers. The fused kernel of a CPU takes it only if the mask needs no gradient.",
        "If the mask is a constant, detach it (mask.detach()). A learned bias needs its gradient: compute it with"
        " torch.nn.attention.flex_attention and a score_mod.",
    ),
    FallbackReason.MASK: Reason(
        "It is called with a mask, which flash attention does not take. Memory-efficient attention takes masks if it is"
        " switched on.",
        "Use is_causal=True in place of a causal mask, and torch.nn.attention.flex_attention for others. Look for"
        " sdpa_kernel(...) and torch.backends.cuda.enable_mem_efficient_sdp(False).",
    ),
}
_SETTINGS = (
    "Look for settings that forbid the fused kernels, such as sdpa_kernel(SDPBackend.MATH) and"
    " torch.backends.cuda.enable_flash_sdp(False), and for inputs whose last dimension is not contiguous (call"
    " .contiguous() after a transposition)."
)
_FITS = "The recorded sizes, types and values fit a fused kernel, so a setting or the layout of the inputs forbids it."
_WARNS = (
    "Call it once under sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]): PyTorch then warns"
    " why each kernel is not used."
)
_SETTING_ON_CPU, _SETTING_ON_GPU = Reason(_FITS, _SETTINGS), Reason(_FITS, f"{_SETTINGS} {_WARNS}")
_UNKNOWN_ON_CPU = Reason(
    "The trace does not show the reason, as it has no sizes and types.",
    f"Record with record_shapes=True. Reasons on a CPU are dropout_p above 0, inputs without four dimensions and a mask"
    f" that needs a gradient. {_SETTINGS}",
)
_UNKNOWN_ON_GPU = Reason(
    "The trace does not show the reason, as it has no sizes and types.",
    f"{_WARNS} Usual reasons are a setting such as sdpa_kernel(SDPBackend.MATH), float64, inputs"
    " without four dimensions or with a last dimension that is not contiguous, enable_gqa=True with a mask or in"
    " float32, and deterministic algorithms.",
)


def fallback_words(reasons: Sequence[FallbackReason], *, on_gpu: bool) -> Reason:
    """Return the texts on the reasons for which attention takes its math kernel on a GPU or on a CPU."""
    others = {
        FallbackReason.SETTING: _SETTING_ON_GPU if on_gpu else _SETTING_ON_CPU,
        FallbackReason.UNKNOWN: _UNKNOWN_ON_GPU if on_gpu else _UNKNOWN_ON_CPU,
    }
    texts = [REASONS.get(reason) or others[reason] for reason in reasons]
    return Reason(" ".join(text.why for text in texts), " ".join(text.next for text in texts))
