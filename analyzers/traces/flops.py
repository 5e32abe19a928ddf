"""Count the floating-point operations of operators whose input sizes were recorded (`record_shapes`).

A multiplication and the addition that follows it count as two operations, the convention of device data sheets and of
`torch.utils.flop_counter`. Elementwise operators do not count, because they have few operations compared with
products.

Example: `aten::addmm` with inputs [4096], [8192, 1024] and [1024, 4096] multiplies 8192 x 1024 by 1024 x 4096: 2 *
8192 * 1024 * 4096 = 68.7 GFLOP. On an H100 (989 TFLOP/s) it takes at least 69 µs.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np

from analyzers.columns import Column, Mask
from analyzers.traces.columns import NONE, Work, innermost_selected
from analyzers.traces.reading.numbering import combined_codes, first_rows, rows_by_value
from analyzers.traces.reading.trace import OPS, Trace

Dims = list[Any]
"""The sizes of one input as the trace has them; their types are checked only when they are used."""
Counted = tuple[int, int]
"""Two counts of an operator: its floating-point operations, and the elements of its result or the bytes that it moves.

Formulas return elements; `_operator_count` turns them into bytes.
"""

# Peak FLOP/s (dense, 16-bit) and memory bytes/s of one device, from the maker's data sheet. An MI250X counts as two
# devices, so half of its sheet. The first name found in the device's name counts: "H100 PCIe" stands before "H100".
_PEAKS = {
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

        The value is None if `_PEAKS` does not list the device, or if no device worked.
        """
        # Without device work the operators ran on the host, whose speed says nothing about the device.
        return _PEAKS.get(device_of(self.trace)) if len(self.trace.work) else None

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
        rows, operations, moved = self.rows
        named = rows_by_value(self.trace.columns["name"][rows])
        return {name: (int(operations[mine].sum()), int(moved[mine].sum())) for name, mine in named}

    def of_name(self, name: int) -> OperatorCount:
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
    names = " ".join(trace.header.get("devices", []))
    return next((name for name in _PEAKS if re.search(rf"\b{name}\b", names)), "")


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
    dims, types, concrete = decoded_inputs(shapes)
    try:
        operations, result = _FORMULAS[name](dims, concrete)
        sizes = [_TYPE_BYTES.get(str(kind), 0) for kind in types]
        read = sum(_elements_of(dim) * size for dim, size in zip(dims, sizes, strict=False) if size and dim)
    except (IndexError, TypeError, ValueError):
        return 0, 0
    moved = read + result * max(sizes, default=0)
    plausible = 0 <= operations < _COUNT_AT_MOST and 0 <= moved < _COUNT_AT_MOST
    return (operations, moved) if plausible else (0, 0)


def decoded_inputs(shapes: str) -> tuple[list[Any], list[Any], list[Any]]:
    """Return the sizes, the types and the values of an operator's inputs; an empty list for each that is not recorded.

    `shapes` is the trace's text of the operator's input shapes: the three as JSON, separated by zero bytes.
    """
    sizes, types, values, *_ = (decoded_list(part) for part in f"{shapes}\0\0".split("\0"))
    return sizes, types, values


def decoded_list(text: str) -> list[Any]:
    try:
        value = msgspec.json.decode(text) if text else []
    except msgspec.DecodeError:
        return []
    return value if isinstance(value, list) else []


_FLOAT32 = re.compile(
    r"(?<![a-z0-9])sgemm|_scudnn|simt_sgemm|implicit_convolve_sgemm<float|gemmSN_\w*<float|[dw]grad\w*_engine<float"
    r"|(?<![a-z])ffma(?![a-z])|explicit_convolve_sgemm|cutlass_\d+_simt_s|Cijk_A[a-z]+_B[a-z]+_S_?B_",
)
"""Matches kernels of float32 products and convolutions on ordinary cores: S means single (cuBLAS, cuDNN, Tensile).

In Tensile's names only the letters after the two operands are types: `Cijk_Alik_Bljk_S_B_Bias_HA_S_SAV` is in float32,
`Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV` in bfloat16, and `Cijk_Alik_Bljk_S_MX_B` in TF32.
"""
_FLOAT64 = re.compile(
    r"(?<![a-z0-9])dgemm|_d884gemm|tensorop_d\d+gemm|_engine<double|convolve_dgemm|Cijk_A[a-z]+_B[a-z]+_D_?B_"
)
"""Matches kernels of float64 products and convolutions: D means double."""
_TENSOR_CORES = re.compile(r"tf32|s1688|s161\d\d|s884|h884|h1688|h16816|bf16|f16|half|hmma|wmma|tensorop|e4m3|e5m2")
"""Matches the names of kernels that use tensor cores or 16-bit numbers."""
SOFTMAX = re.compile(r"softmax_warp|cunn_SoftMax|softmax", re.IGNORECASE)
_LAYOUT_COPY = re.compile(
    r"nchwToNhwc|nhwcToNchw|batched_transpose_|transpose_read_write|nchw2nhwc|nhwc2nchw|SubTensorOp"
)
"""Matches kernels of cuDNN and MIOpen that only change the order of the dimensions of a tensor."""
_POINTWISE = re.compile(
    r"elementwise_kernel|elementwise_kernel_with_index|(?<!multi_tensor_)\breduce_kernel<|index_elementwise"
)
"""Matches pointwise kernels of eager PyTorch, which a compiler can fuse; Triton kernels are already fused."""
_ALREADY_FUSED = re.compile(r"^triton_|multi_tensor_apply|layer_norm|rms_norm|batch_norm|bn_[fb]w")


_PRODUCT = re.compile(
    r"gemm|nvjet_|cutlass|xmma|Cijk_|fprop|[dw]grad|convolve|winograd|cudnn.*conv|flash_(fwd|bwd)|fmha|AttentionKernel"
    r"|^attn_(fwd|bwd)|sdpa|scudnn",
    re.IGNORECASE,
)
_NO_PRODUCT = re.compile(r"permute|splitKreduce|nchwTo|nhwcTo|fbgemm_gpu|multi_tensor|elementwise|typeConvert")


def multiplies(name: str) -> bool:
    return _PRODUCT.search(name) is not None and _NO_PRODUCT.search(name) is None


def runs_in_float32(name: str) -> bool:
    return _FLOAT32.search(name) is not None and _TENSOR_CORES.search(name) is None


def runs_in_float64(name: str) -> bool:
    return _FLOAT64.search(name) is not None


def is_pointwise(name: str) -> bool:
    """Return whether a kernel of this name is a pointwise operator of eager PyTorch, which a compiler could fuse."""
    return _POINTWISE.search(name) is not None and _ALREADY_FUSED.search(name) is None


def is_layout_copy(name: str) -> bool:
    return _LAYOUT_COPY.search(name) is not None


class Arithmetic(StrEnum):
    """The number format, such as 16 bit or TF32, in which most floating-point operations are done."""

    SIXTEEN_BIT = "16 bit"
    TF32 = "TF32"
    FLOAT32 = "float32"
    FLOAT8 = "float8"
    UNKNOWN = ""


_TO_16_BIT = {Arithmetic.SIXTEEN_BIT: 1.0, Arithmetic.TF32: 0.5, Arithmetic.FLOAT8: 2.0, Arithmetic.UNKNOWN: 1.0}
"""{number format: peak rate of tensor cores in it, divided by that in 16 bits}, which is the same for all devices."""
_FLOAT32_PEAKS = {
    "B200": 75e12, "GB200": 80e12, "H200": 67e12, "H100 PCIe": 51e12, "H100 NVL": 60e12, "H100": 67e12, "H20": 44e12,
    "A100": 19.5e12, "A10": 31.2e12, "V100": 15.7e12, "T4": 8.1e12, "L40S": 91.6e12, "L4": 30.3e12, "MI325X": 163e12,
    "MI300X": 163e12, "MI250X": 24e12,
}  # fmt: skip
"""{part of a device's name: FLOP/s in float32 without tensor cores}, from the same data sheets as `_PEAKS`."""
TYPES = {"float": Arithmetic.TF32, "c10::Half": Arithmetic.SIXTEEN_BIT, "c10::BFloat16": Arithmetic.SIXTEEN_BIT}


_BEFORE_TF32 = ("V100", "T4")


class Coverage(NamedTuple):
    """Whether enough floating-point operations of a device were counted to be compared with its peak.

    `share` is the share of the time of matrix products that was launched by counted operators (None: there are no
    products). `arithmetic` is the number format of most operations, and `peak_flops_per_s` the device's peak in this
    format.
    """

    share: float | None
    arithmetic: Arithmetic
    peak_flops_per_s: float | None


def coverage(work: Work, formulas: Formulas) -> Coverage:
    """Return how much of a device's matrix products is counted, and the peak rate for comparison with the counts."""
    if work.device is None:
        return Coverage(None, Arithmetic.UNKNOWN, formulas.peaks[0] if formulas.peaks else None)
    products = named(work, multiplies)
    total = int(work.own[products].sum())
    share = int(work.own[products & _is_counted(work, formulas)].sum()) / total if total else None
    arithmetic = _most_common(work, formulas)
    return Coverage(share, arithmetic, peak(formulas, arithmetic))


def named(work: Work, matches: Callable[[str], bool]) -> Mask:
    texts = np.array([matches(name) for name in work.trace.names] or [False])
    return np.asarray(texts[work.trace.columns["name"][work.rows]])


def _is_counted(work: Work, formulas: Formulas) -> Mask:
    if not len(formulas.rows[0]):
        return np.zeros(len(work.rows), bool)
    return np.asarray(work.linked & (formulas.around[work.launch] != NONE))


def _most_common(work: Work, formulas: Formulas) -> Arithmetic:
    """Return the number format in which most of the counted operations are done.

    For float32 inputs the names of the kernels show whether tensor cores did them in TF32.
    """
    operations = defaultdict[Arithmetic, int](int)
    for text, count in formulas.by_shape.items():
        types = decoded_list(f"{text}\0".split("\0")[1])
        operations[_arithmetic_of([str(kind) for kind in types])] += count
    most = max(operations, key=lambda kind: operations[kind], default=Arithmetic.UNKNOWN)
    if most is not Arithmetic.TF32:
        return most
    products, plain = named(work, multiplies), named(work, runs_in_float32)
    on_cores = int(work.own[products & ~plain].sum()) >= int(work.own[plain].sum())
    return Arithmetic.TF32 if on_cores else Arithmetic.FLOAT32


def _arithmetic_of(types: list[str]) -> Arithmetic:
    if any("Float8" in kind for kind in types):
        return Arithmetic.FLOAT8
    return next((TYPES[kind] for kind in types if kind in TYPES), Arithmetic.UNKNOWN)


def peak(formulas: Formulas, arithmetic: Arithmetic) -> float | None:
    if not formulas.peaks:
        return None
    device = device_of(formulas.trace)
    without_cores = arithmetic is Arithmetic.FLOAT32 or (arithmetic is Arithmetic.TF32 and device in _BEFORE_TF32)
    return _FLOAT32_PEAKS[device] if without_cores else formulas.peaks[0] * _TO_16_BIT[arithmetic]
