"""Count the floating-point operations of operators whose input sizes were recorded (`record_shapes`).

A multiplication and the addition that follows it count as two operations, the convention of device data sheets and of
`torch.utils.flop_counter`. Elementwise operators do not count, because they have few operations compared with
products.

Example: `aten::addmm` with inputs [4096], [8192, 1024] and [1024, 4096] multiplies 8192 x 1024 by 1024 x 4096: 2 *
8192 * 1024 * 4096 = 68.7 GFLOP. On an H100 (989 TFLOP/s) it takes at least 69 µs.
"""

import math
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypedDict

import msgspec
import numpy as np

from analyzers.columns import Column, Mask
from analyzers.traces.columns.nesting import NONE, innermost_selected
from analyzers.traces.reading.distinct import combined_codes, first_rows, rows_by_value
from analyzers.traces.reading.trace import OPS, Trace

Dims = list[Any]
"""The sizes of one input as the trace has them; their types are checked only when they are used."""
Counted = tuple[int, int]
"""Two counts of an operator: its floating-point operations, and the elements of its result or the bytes that it moves.

Formulas return elements; `_operator_count` turns them into bytes.
"""

# Peak FLOP/s (dense, 16-bit) and memory bytes/s of one device, from the maker's data sheet. An MI250X counts as two
# devices, so half of its sheet. The first name found in the device's name counts: "H100 PCIe" stands before "H100".
PEAKS = {
    "B200": (2.25e15, 8.0e12),
    "GB200": (2.25e15, 8.0e12),
    "H200": (989e12, 4.8e12),
    "H100 PCIe": (756e12, 2.0e12),
    "H100 NVL": (835e12, 3.9e12),
    "H100": (989e12, 3.35e12),
    "H20": (148e12, 4.0e12),
    "A100": (312e12, 2.0e12),
    "A10": (125e12, 0.6e12),
    "V100": (125e12, 0.9e12),
    "T4": (65e12, 0.32e12),
    "L40S": (362e12, 0.86e12),
    "L4": (121e12, 0.3e12),
    "MI325X": (1307e12, 6.0e12),
    "MI300X": (1307e12, 5.3e12),
    "MI250X": (191.5e12, 1.6e12),
}
_TYPE_BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4, "bool": 1,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "unsigned char": 1, "signed char": 1, "short int": 2,
}  # fmt: skip
# Operators by which autograd saves inputs; they do no work of their own.
_SAVING = {"aten::detach"}
# Operations or bytes of one operator: more can only come from damaged shapes.
_COUNT_AT_MOST = 1 << 50


def _elements_of(dims: Dims) -> int:
    return math.prod(int(size) for size in dims)


def matrix_product(a: Dims, b: Dims) -> Counted:
    """Return the operations of the product [..., m, k] x [..., k, n], and the number of elements of its result.

    There are 2 m k n operations per matrix of the batch.
    """
    return 2 * _elements_of(a) * int(b[-1]), _elements_of(a[:-1]) * int(b[-1])


def mm(dims: list[Dims], _values: list[Any]) -> Counted:
    return matrix_product(dims[0], dims[1])


def addmm(dims: list[Dims], _values: list[Any]) -> Counted:
    return matrix_product(dims[1], dims[2])


def attention(dims: list[Dims], _values: list[Any]) -> Counted:
    """Return the operations of attention over q [b, h, s, d], k and v, and the number of elements of its result.

    There are two products: q k^T (the scores), and the scores times v. All scores are counted, also with a causal mask,
    as in PaLM (arXiv:2204.02311, appendix B) and torch's flop counter.
    """
    q, k, v = dims[:3]
    heads, length = _elements_of(q[:-2]), int(k[-2])
    return 2 * heads * int(q[-2]) * length * (int(q[-1]) + int(v[-1])), heads * int(q[-2]) * int(v[-1])


def _attention_backward(dims: list[Dims], _values: list[Any]) -> Counted:
    """Return the operations of attention's backward from grad, q, k and v, and the number of elements of its results.

    The forward pass has two products, the backward pass has five, so the operations are 5/2 of the forward ones: the
    scores are computed again, then the gradients of v, of the scores, of q and of k (FlashAttention, arXiv:2205.14135).
    The results are the gradients of q, k and v; each is counted with as many elements as the result of the forward
    pass.
    """
    operations, elements = attention(dims[1:4], _values)
    return operations * 5 // 2, 3 * elements


def convolution(dims: list[Dims], values: list[Any]) -> Counted:
    """Return the operations of a convolution, and the number of elements of its result.

    `dims` has the sizes of the input [b, c, ...] and of the weight [o, c / groups, ...]; `values[3:6]` are stride,
    padding and dilation as texts. Each element of the result is a sum of c / groups * (kernel size) products.
    """
    given, weight = dims[0], dims[1]
    stride, padding, dilation = (_whole_numbers(values[i], len(given) - 2) for i in (3, 4, 5))
    size = [
        (n + 2 * p - d * (int(k) - 1) - 1) // s + 1
        for n, k, s, p, d in zip(map(int, given[2:]), weight[2:], stride, padding, dilation, strict=True)
    ]
    result = int(given[0]) * int(weight[0]) * math.prod(size)
    return 2 * result * _elements_of(weight[1:]), result


def convolution_backward(dims: list[Dims], _values: list[Any]) -> Counted:
    """Return the operations of the backward of a convolution, and the number of elements of its results.

    `dims` has the sizes of grad [b, o, ...], of the input and of the weight. The gradient of the input and the gradient
    of the weight each take as many operations as the forward pass.
    """
    grad, weight = dims[0], dims[2]
    return 2 * 2 * _elements_of(grad) * _elements_of(weight[1:]), _elements_of(dims[1]) + _elements_of(weight)


def _whole_numbers(text: str, count: int) -> list[int]:
    """Parse a text such as `[2, 2]` into a list of `count` integers; a single number is repeated `count` times."""
    numbers = [int(word) for word in re.findall(r"-?\d+", text)]
    return numbers * count if len(numbers) == 1 else numbers


_FORMULAS: dict[str, Callable[[list[Dims], list[Any]], Counted]] = {
    "aten::mm": mm,
    "aten::bmm": mm,
    "aten::_scaled_mm": mm,
    "aten::addmm": addmm,
    "aten::baddbmm": addmm,
    "aten::convolution": convolution,
    "aten::convolution_backward": convolution_backward,
    **dict.fromkeys(
        (
            "aten::_scaled_dot_product_flash_attention",
            "aten::_scaled_dot_product_efficient_attention",
            "aten::_scaled_dot_product_cudnn_attention",
            "aten::_scaled_dot_product_flash_attention_for_cpu",
        ),
        attention,
    ),
    **dict.fromkeys(
        (
            "aten::_scaled_dot_product_flash_attention_backward",
            "aten::_scaled_dot_product_efficient_attention_backward",
            "aten::_scaled_dot_product_cudnn_attention_backward",
            "aten::_scaled_dot_product_flash_attention_for_cpu_backward",
        ),
        _attention_backward,
    ),
}


class OperatorCount(TypedDict, total=False):
    """The fields of `Cost` on the floating-point operations and bytes of all operators of one name.

    `bound` says whether `compute` or `memory` limits their speed.
    """

    flops: int
    bytes: int
    bound: str


class Formulas:
    """The floating-point operations and bytes of operators that have a formula, and the device's peak rates."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def peaks(self) -> tuple[float, float] | None:
        """The peak FLOP/s and memory bytes/s of the device.

        The value is None if `PEAKS` does not list the device, or if no device worked.
        """
        # Without device work the operators ran on the host, whose speed says nothing about the device.
        return PEAKS.get(device_of(self.trace)) if len(self.trace.work) else None

    @cached_property
    def around(self) -> Column:
        """For each event of the trace, the row of the innermost operator with a formula around it, or NONE.

        An operator that has a formula itself gets its own row.
        """
        has_formula = np.zeros(len(self.trace.columns["start"]), bool)
        has_formula[self.trace.rows_named(self.trace.text_matches(set(_FORMULAS)), OPS)] = True
        return innermost_selected(has_formula, self.trace.columns["parent"])

    @cached_property
    def rows(self) -> tuple[Column, Column, Column]:
        """Three columns with a row per counted operator: its trace row, its floating-point operations and its bytes.

        An operator inside another counted operator is left out, so that no work counts twice.
        """
        c = self.trace.columns
        shape_rows = c["shape_row"].astype(np.int64)
        parent = c["parent"][shape_rows]
        shaped = (self.around[shape_rows] == shape_rows) & ((parent < 0) | (self.around[parent] == NONE))
        rows, texts = c["shape_row"][shaped].astype(np.int64), c["shape_text"][shaped].astype(np.int64)
        # Recomputation for checkpointing stops once it has all inputs that backward needs. The operator it stops in has
        # saved its inputs (detach) but launched nothing.
        ran = ~is_recomputed(self.trace, rows) | np.isin(rows, c["parent"][~self.trace.name_matches(_SAVING)])
        rows, texts = rows[ran], texts[ran]
        pair = combined_codes(c["name"][rows], texts)
        one = first_rows(pair)
        pairs = zip(c["name"][rows[one]].tolist(), texts[one].tolist(), strict=True)
        counts = [_operator_count(self.trace.names[name], c.meta["shapes"][text]) for name, text in pairs]
        counted = np.array(counts, np.int64).reshape(-1, 2)[pair]
        return rows, counted[:, 0], counted[:, 1]

    @cached_property
    def by_shape(self) -> dict[str, int]:
        """{text of input sizes, types and values: floating-point operations of all operators with this text}."""
        c, (rows, operations, _) = self.trace.columns, self.rows
        text_of = np.full(len(c["start"]), NONE)
        text_of[c["shape_row"]] = c["shape_text"]
        named = rows_by_value(text_of[rows])
        return {c.meta["shapes"][text]: int(operations[mine].sum()) for text, mine in named if text != NONE}

    def total(self, selected: Mask | None = None) -> tuple[int, int]:
        """Return the floating-point operations of all counted operators, and the part that checkpointing repeated.

        `selected` is a mask of the events of the trace to count (None: all).
        """
        rows, operations, _ = self.rows
        mine = np.ones(len(rows), bool) if selected is None else selected[rows]
        return int(operations[mine].sum()), int(operations[mine & is_recomputed(self.trace, rows)].sum())

    @cached_property
    def by_name(self) -> dict[int, Counted]:
        """{index of a name in `trace.names`: (operations, bytes) of all counted operators of this name}."""
        rows, operations, moved = self.rows
        named = rows_by_value(self.trace.columns["name"][rows])
        return {name: (int(operations[mine].sum()), int(moved[mine].sum())) for name, mine in named}

    def of_name(self, name: int) -> OperatorCount:
        """Return the sums of FLOPs and of moved bytes of all operators with one name, and what limits their speed.

        `name` is the index of the name in `trace.names`. Only operators whose shapes are recorded are in the sums.
        """
        operations, moved = self.by_name.get(name, (0, 0))
        return OperatorCount(flops=operations, bytes=moved, bound=self.bound(operations, moved))

    def bound(self, operations: int, moved: int) -> str:
        """Return what limits an operator's speed in the roofline model: `compute`, `memory`, or "" if it is unknown.

        `operations` is the number of its floating-point operations, `moved` the bytes that it reads and writes.
        Example: an H100 does 989e12 FLOP/s and 3.35e12 bytes/s, so it can do 295 operations while it moves one byte.
        An operator that does more than 295 operations per byte is limited by compute.
        """
        if not self.peaks or not operations or not moved:
            return ""
        return "compute" if operations / moved >= self.peaks[0] / self.peaks[1] else "memory"


def device_of(trace: Trace) -> str:
    """Return the name of the trace's device as written in the table `PEAKS`; empty if the table does not list it."""
    names = " ".join(trace.header.get("devices", []))
    return next((name for name in PEAKS if re.search(rf"\b{name}\b", names)), "")


def is_recomputed(trace: Trace, rows: Column) -> Mask:
    """Return, for each of the trace rows `rows`, whether activation checkpointing ran this operator a second time.

    Such operators are the forward operators that run inside a backward operator.
    """
    c = trace.columns
    # Operators of the backward itself have no sequence number of their own, as nobody needs their gradient.
    forward = np.isin(rows, c["autograd_row"][c["autograd_thread"] <= 0])
    backward = np.zeros(len(c["start"]), bool)
    backward[c["autograd_row"][c["autograd_thread"] > 0]] = True
    return np.asarray(forward & (innermost_selected(backward, c["parent"])[rows] != NONE))


def _operator_count(name: str, shapes: str) -> Counted:
    """Return the floating-point operations of one operator, and the bytes that it moves; (0, 0) for malformed shapes.

    `shapes` has the input sizes, their types and concrete values as three JSON texts, separated by zero bytes.
    """
    dims, types, concrete = (decoded_list(part) for part in f"{shapes}\0\0".split("\0")[:3])
    try:
        operations, result = _FORMULAS[name](dims, concrete)
        sizes = [_TYPE_BYTES.get(str(kind), 0) for kind in types]
        read = sum(_elements_of(dim) * size for dim, size in zip(dims, sizes, strict=False) if size and dim)
    except (IndexError, TypeError, ValueError):
        return 0, 0
    moved = read + result * max(sizes, default=0)
    plausible = 0 <= operations < _COUNT_AT_MOST and 0 <= moved < _COUNT_AT_MOST
    return (operations, moved) if plausible else (0, 0)


def decoded_list(text: str) -> list[Any]:
    """Return the list in a JSON text; empty if the text is no JSON list."""
    try:
        value = msgspec.json.decode(text) if text else []
    except msgspec.DecodeError:
        return []
    return value if isinstance(value, list) else []
