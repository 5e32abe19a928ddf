"""Floating-point operations of operators whose input sizes were recorded: a product and an addition count as two."""

import math
import re
from collections.abc import Callable
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.nesting import NONE, innermost_selected
from analyzers.traces.model import OPS, Trace
from analyzers.traces.reading.distinct import rows_by_value

Dims = list[Any]
Counted = tuple[int, int]
"""(operations, elements of the result)."""

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
"""Dense 16-bit operations and bytes of memory a second of one device, by the maker's data sheet.

An MI250X is two devices; of names that begin alike the longer one stands first.
"""
BYTES = {
    "double": 8, "float": 4, "c10::Half": 2, "c10::BFloat16": 2, "long int": 8, "long": 8, "int": 4, "bool": 1,
    "c10::Float8_e4m3fn": 1, "c10::Float8_e5m2": 1, "unsigned char": 1, "signed char": 1, "short int": 2,
}  # fmt: skip
SAVING = {"aten::detach"}
AT_MOST = 1 << 50
"""Operations of one operator; more is no recording."""


def product(dims: Dims) -> int:
    return math.prod(int(size) for size in dims)


def matrix(a: Dims, b: Dims) -> Counted:
    """[..., m, k] x [..., k, n]"""
    return 2 * product(a) * int(b[-1]), product(a[:-1]) * int(b[-1])


def mm(dims: list[Dims], _values: list[Any]) -> Counted:
    return matrix(dims[0], dims[1])


def addmm(dims: list[Dims], _values: list[Any]) -> Counted:
    return matrix(dims[1], dims[2])


def attention(dims: list[Dims], _values: list[Any]) -> Counted:
    """Scores and their product with the values, no matter what a mask leaves out; q [b, h, s, d], k, v."""
    q, k, v = dims[:3]
    heads, length = product(q[:-2]), int(k[-2])
    return 2 * heads * int(q[-2]) * length * (int(q[-1]) + int(v[-1])), heads * int(q[-2]) * int(v[-1])


def attention_backward(dims: list[Dims], _values: list[Any]) -> Counted:
    """Five products where forward has two; grad, q, k, v."""
    done, elements = attention(dims[1:4], _values)
    return done * 5 // 2, 3 * elements


def convolution(dims: list[Dims], values: list[Any]) -> Counted:
    """Input [b, c, ...], weight [o, c / groups, ...], and stride, padding, dilation among the values."""
    given, weight = dims[0], dims[1]
    stride, padding, dilation = (numbers(values[i], len(given) - 2) for i in (3, 4, 5))
    size = [
        (n + 2 * p - d * (int(k) - 1) - 1) // s + 1
        for n, k, s, p, d in zip(map(int, given[2:]), weight[2:], stride, padding, dilation, strict=True)
    ]
    result = int(given[0]) * int(weight[0]) * math.prod(size)
    return 2 * result * product(weight[1:]), result


def convolution_backward(dims: list[Dims], _values: list[Any]) -> Counted:
    """Gradients of input and weight, each as much work as forward: grad [b, o, ...], input, weight."""
    grad, weight = dims[0], dims[2]
    return 2 * 2 * product(grad) * product(weight[1:]), product(dims[1]) + product(weight)


def numbers(text: str, count: int) -> list[int]:
    """`[2, 2]` as numbers; one alone stands for all."""
    found = [int(word) for word in re.findall(r"-?\d+", text)]
    return found * count if len(found) == 1 else found


FORMULAS: dict[str, Callable[[list[Dims], list[Any]], Counted]] = {
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
        attention_backward,
    ),
}


class Formulas:
    """The operations and bytes of each event of a trace that a formula covers, and the device's peaks."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace

    @cached_property
    def peaks(self) -> tuple[float, float] | None:
        """Operations and bytes a second that the device can do at best; None where it is not in the table, or did
        nothing: how long the host takes to launch tells nothing of it.
        """
        if not len(self.trace.work):
            return None
        names = " ".join(self.trace.header.get("devices", []))
        return next((peaks for name, peaks in PEAKS.items() if re.search(rf"\b{name}\b", names)), None)

    @cached_property
    def rows(self) -> tuple[Column, Column, Column]:
        """(row, operations, bytes) of the events that count; none of them lies inside another."""
        c, counted, found = (
            self.trace.columns,
            self.trace.name_matches(set(FORMULAS)) & self.trace.category_matches(OPS),
            {},
        )
        inner = innermost_selected(counted, c["parent"])
        outermost = counted & ((c["parent"] < 0) | (inner[c["parent"]] == NONE))
        shaped = outermost[c["shape_row"]]
        rows, texts = c["shape_row"][shaped].astype(np.int64), c["shape_text"][shaped].astype(np.int64)
        # Checkpointing stops once it has what backward wants: in an operator that has saved its inputs, no more.
        ran = ~again(self.trace, rows) | np.isin(rows, c["parent"][~self.trace.name_matches(SAVING)])
        rows, texts = rows[ran], texts[ran]
        pairs = list(zip(c["name"][rows].tolist(), texts.tolist(), strict=True))
        for name, text in set(pairs):
            found[name, text] = count(self.trace.names[name], self.trace.columns.meta["shapes"][text])
        done = np.array([found[pair] for pair in pairs], np.int64).reshape(-1, 2)
        return rows, done[:, 0], done[:, 1]

    def total(self, of: Column | None = None) -> tuple[int, int]:
        """Operations of the events in `of` (a flag for each of the trace; all by default), and those done again."""
        rows, done, _ = self.rows
        chosen = np.ones(len(rows), bool) if of is None else of[rows]
        return int(done[chosen].sum()), int(done[chosen & again(self.trace, rows)].sum())

    @cached_property
    def by_name(self) -> dict[int, Counted]:
        rows, done, moved = self.rows
        named = rows_by_value(self.trace.columns["name"][rows])
        return {name: (int(done[places].sum()), int(moved[places].sum())) for name, places in named}

    def of_name(self, name: int) -> dict[str, Any]:
        """`flops`, `bytes` and `bound` of the operators of one name."""
        done, moved = self.by_name.get(name, (0, 0))
        return {"flops": done, "bytes": moved, "bound": self.bound(done, moved)}

    def bound(self, done: int, moved: int) -> str:
        """What the roofline of this device lets such an operator wait for: `compute` or `memory`."""
        if not self.peaks or not done or not moved:
            return ""
        return "compute" if done / moved >= self.peaks[0] / self.peaks[1] else "memory"


def again(trace: Trace, rows: Column) -> Column:
    """Which of these ran a second time, for activation checkpointing: forward operators inside a backward one."""
    c = trace.columns
    # Operators of the backward itself have no sequence number of their own, as no gradient of theirs is wanted.
    forward = np.isin(rows, c["autograd_row"][c["autograd_thread"] <= 0])
    backward = np.zeros(len(c["start"]), bool)
    backward[c["autograd_row"][c["autograd_thread"] > 0]] = True
    found: Column = forward & (innermost_selected(backward, c["parent"])[rows] != NONE)
    return found


def count(name: str, shapes: str) -> Counted:
    """(operations, bytes read and written) of one operator; zeros where its shapes are not as they should be."""
    dims, types, concrete = (decoded(part) for part in f"{shapes}\0\0".split("\0")[:3])
    try:
        done, result = FORMULAS[name](dims, concrete)
        sizes = [BYTES.get(str(kind), 0) for kind in types]
        read = sum(product(one) * size for one, size in zip(dims, sizes, strict=False) if size and one)
    except (IndexError, TypeError, ValueError):
        return 0, 0
    moved = read + result * max(sizes, default=0)
    return (done, moved) if 0 <= done < AT_MOST and 0 <= moved < AT_MOST else (0, 0)


def decoded(text: str) -> list[Any]:
    try:
        found = msgspec.json.decode(text) if text else []
    except msgspec.DecodeError:
        return []
    return found if isinstance(found, list) else []
