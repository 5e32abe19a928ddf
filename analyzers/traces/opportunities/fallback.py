"""Find out why PyTorch's attention operator computed attention with its math kernel instead of a fused one.

`scaled_dot_product_attention` checks its inputs and the settings before each call. The checks are those of
`sdp_utils.cpp` and `sdp_utils_cpp.cpp` in PyTorch's sources (for CUDA: flash attention, then memory-efficient
attention); a trace shows the sizes, types and values that most of them look at. Example: on a CPU, inputs
[[4, 8, 512, 64]] * 3 in float with a dropout of 0.1 take the math kernel, as the fused one has no dropout.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from analyzers.traces.answers.flops import decoded_list
from analyzers.traces.opportunity_model import FallbackReason

_MASK, _DROPOUT, _GROUPED = 3, 4, 7
"""The positions of these arguments of `aten::scaled_dot_product_attention`; the first three are q, k and v."""
_HALF = {"c10::Half", "c10::BFloat16"}
_TYPES_OF_GPU = _HALF | {"float"}
_TYPES_OF_CPU = _TYPES_OF_GPU | {"double"}
_LARGEST_HEAD = 256


class Call(NamedTuple):
    """The sizes, types and values of the arguments of one call of the operator; empty lists where not recorded."""

    dims: list[Any]
    types: list[Any]
    values: list[Any]

    def value(self, position: int) -> str:
        """Return the value of an argument as text, such as `0.1`; empty if it was not recorded."""
        return str(self.values[position]) if position < len(self.values) else ""

    @property
    def tensors(self) -> list[list[int]]:
        """The sizes of q, k and v."""
        return [size if isinstance(size, list) else [] for size in self.dims[:3]]

    @property
    def kind(self) -> str:
        """The type of the elements of q."""
        return str(self.types[0])

    @property
    def mask_type(self) -> str:
        """The type of the mask's elements; empty if there is no mask."""
        has_mask = len(self.dims) > _MASK and bool(self.dims[_MASK])
        return str(self.types[_MASK]) if has_mask and len(self.types) > _MASK else ""

    @property
    def dropout(self) -> bool:
        """Whether the call drops elements out."""
        return self.value(_DROPOUT) not in ("", "0.", "0", "0.0")


def _call_of(shapes: str) -> Call | None:
    """Return a call of the operator from its recorded shapes; None if they are not those of three tensors."""
    call = Call(*(decoded_list(part) for part in f"{shapes}\0\0".split("\0")[:3]))
    return call if len(call.types) >= 3 and all(call.tensors) else None


def reason_of(shapes: str, operators: Sequence[str], *, on_gpu: bool) -> FallbackReason:
    """Return the most likely reason for the math kernel.

    `shapes` are the recorded arguments of the operator, `operators` the names of the operators inside of the math
    kernel.
    """
    call = _call_of(shapes)
    if call is None:
        has_dropout = any("dropout" in name for name in operators)
        return FallbackReason.DROPOUT if has_dropout and not on_gpu else FallbackReason.UNKNOWN
    found = _reasons_on_gpu(call) if on_gpu else _reasons_on_cpu(call)
    return next(found, FallbackReason.SETTING)


def _reasons_of_both(call: Call) -> Iterator[FallbackReason]:
    """Yield the reasons that hold on any device."""
    if any(len(size) != 4 for size in call.tensors):
        yield FallbackReason.DIMENSIONS
    if len({str(kind) for kind in call.types[:3]}) > 1:
        yield FallbackReason.TYPE


def _reasons_on_cpu(call: Call) -> Iterator[FallbackReason]:
    """Yield the reasons for the math kernel on a CPU, the surest first."""
    yield from _reasons_of_both(call)
    if call.kind not in _TYPES_OF_CPU:
        yield FallbackReason.TYPE
    if call.dropout:
        yield FallbackReason.DROPOUT
    if _differ_in_depth(call):
        yield FallbackReason.VALUE_SIZE
    # Masks of booleans need no gradient, and the fused kernel takes them.
    if call.mask_type not in ("", "bool"):
        yield FallbackReason.MASK_GRADIENT


def _reasons_on_gpu(call: Call) -> Iterator[FallbackReason]:
    """Yield the reasons for the math kernel on a GPU, the surest first.

    Flash attention takes 16-bit types, no mask and heads up to `_LARGEST_HEAD`; memory-efficient attention takes
    float32 and masks, but no grouped queries, and rows that are a multiple of 16 bytes.
    """
    yield from _reasons_of_both(call)
    if call.kind not in _TYPES_OF_GPU:
        yield FallbackReason.TYPE
    needs_efficient = bool(call.mask_type) or call.kind not in _HALF or call.tensors[0][-1] > _LARGEST_HEAD
    if needs_efficient and call.value(_GROUPED) == "True":
        yield FallbackReason.GROUPED
    if needs_efficient and any(size[-1] % (8 if call.kind in _HALF else 4) for size in call.tensors):
        yield FallbackReason.HEAD_SIZE
    if _differ_in_depth(call):
        yield FallbackReason.VALUE_SIZE
    if call.mask_type:
        yield FallbackReason.MASK


def _differ_in_depth(call: Call) -> bool:
    """Return whether the heads of q, k and v do not have one size."""
    return len({size[-1] for size in call.tensors}) > 1
