"""Find matrix products that do not use the tensor cores, or use them badly because of their sizes."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.answers.flops import Formulas, decoded_list
from analyzers.traces.answers.input_shapes import of_rows
from analyzers.traces.columns.nesting import NONE, innermost_selected
from analyzers.traces.columns.work import Work
from analyzers.traces.reading.distinct import distinct_values, rows_by_value

_TENSOR_CORE_FACTOR = 7.5
"""The factor by which tensor cores multiply float32 numbers faster than ordinary cores.

TF32 on an A100 (156 TFLOP/s against 19.5) and on an H100 (494 against 67), 16 bits on a V100 (125 against 15.7).
"""
_FIRST_WITH_TENSOR_CORES = 7
_MULTIPLES = {"c10::Half": 8, "c10::BFloat16": 8}
"""{data type: number of elements in 16 bytes}; each dimension of a product should be a multiple of this number."""
SLOW = 0.5
"""A product with misaligned sizes counts as slow if it reaches less than this share of the rate of aligned products."""
_COMPARABLE = 10
"""A product is compared with products that have at most this many times its operations: larger ones are faster."""
_LARGE_FLOP = 10**10
"""From this many operations on, a product that nothing can be compared with should reach half of the peak rate."""
_PRODUCTS = {"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm"}
_VECTOR = re.compile(r"gemv|gemmk1|dot_kernel")


def shortening_by_tensor_cores(work: Work, formulas: Formulas, multiplies_so: Callable[[str], bool]) -> Integers:
    """Return by how many ns each event of `work` would be shorter if its product used tensor cores.

    `multiplies_so` says by a kernel's name whether it is one of these products, such as `runs_in_float32`; the value is
    0 for all other events. A float64 product gains as much as a float32 one, if not more.
    """
    names = np.array([multiplies_so(name) for name in work.trace.names] or [False])
    slow = names[work.trace.columns["name"][work.rows]]
    if not _has_tensor_cores(work) or not slow.any():
        return np.zeros(len(work.rows), np.int64)
    least = work.own / _TENSOR_CORE_FACTOR
    if formulas.peaks:
        # What moves the bytes cannot be faster than the memory.
        _, _, moved = _per_operator(Attribution(work), formulas)
        least = np.maximum(least, moved / formulas.peaks[1] * 1e9)
    return np.where(slow, np.maximum(work.own - least, 0), 0).astype(np.int64)


def _has_tensor_cores(work: Work) -> bool:
    """Return whether the device has tensor cores; False if the trace does not name the device."""
    capability = work.trace.header.get("capability")
    return capability is not None and capability >= _FIRST_WITH_TENSOR_CORES


def _per_operator(attribution: Attribution, formulas: Formulas) -> tuple[Integers, Column, Column]:
    """Return, for each event of `work`, the trace row of the counted operator that launched it, its FLOP and its bytes.

    The result is three arrays; FLOP are floating-point operations. A counted operator is one whose operations
    `formulas` has. If it launches several kernels, its FLOP and bytes are divided among them by time. Events that no
    counted operator launched have the row NONE and zeros.
    """
    work, c = attribution.work, attribution.trace.columns
    rows, operations, moved = formulas.rows
    counted = np.zeros(len(c["start"]), bool)
    counted[rows] = True
    around = innermost_selected(counted, c["parent"])
    mine = np.where(work.linked, around[work.launch], NONE)
    spent = np.zeros(len(c["start"]), np.int64)
    np.add.at(spent, mine[mine >= 0], work.own[mine >= 0])
    part = np.where(mine >= 0, work.own / np.maximum(spent[mine], 1), 0.0)
    flop, size = (of_rows(len(c["start"]), rows, values)[mine] * part for values in (operations, moved))
    return mine, flop, size


@dataclass(frozen=True)
class MisalignedProducts:
    """Matrix products in 16 bits with a dimension that is not a multiple of 16 bytes, which makes them far slower."""

    attribution: Attribution
    formulas: Formulas

    @cached_property
    def shapes(self) -> tuple[Column, Column]:
        """The trace rows of the matrix products with recorded shapes, and the index of each one's shape text."""
        c = self.attribution.trace.columns
        wanted = self.attribution.trace.text_matches(_PRODUCTS)[c["name"][c["shape_row"]]]
        return c["shape_row"][wanted].astype(np.int64), c["shape_text"][wanted].astype(np.int64)

    def shortening(self) -> Integers:
        """Return the ns that each event of `work` would save if its misaligned product were as fast as aligned ones.

        It is 0 for all other events.
        """
        work = self.attribution.work
        nothing, (rows, texts) = np.zeros(len(work.rows), np.int64), self.shapes
        known = self.attribution.trace.columns.meta["shapes"]
        odd = {number: _is_odd(known[number]) for number in distinct_values(texts).tolist()}
        if not any(odd.values()):
            return nothing
        row, flop, _ = _per_operator(self.attribution, self.formulas)
        text_of = np.full(len(work.trace.columns["start"]) + 1, NONE)
        text_of[rows] = texts
        text = text_of[row]  # that of NONE, the last one, is NONE
        groups = [(number, mine) for number, mine in rows_by_value(text) if number != NONE and odd[number] is not None]
        rates = {number: float(flop[mine].sum() / max(1, work.own[mine].sum())) for number, mine in groups}
        each = {number: float(flop[mine].sum() / len(mine)) for number, mine in groups}
        aligned = [(each[number], rates[number]) for number, _ in groups if not odd[number]]
        shorter = nothing.copy()
        for number, mine in groups:
            best = self.attainable(each[number], aligned)
            if odd[number] and 0 < rates[number] < SLOW * best:
                shorter[mine] = (work.own[mine] * (1 - rates[number] / best)).astype(np.int64)
        return shorter

    def attainable(self, operations: float, aligned: list[tuple[float, float]]) -> float:
        """Return the rate (FLOP/ns) that a product with so many operations should reach; 0 if it is unknown.

        `aligned` has (operations, rate) of each size of the aligned products. A small product is slow for other reasons
        than its alignment, so it is not compared with products that are far larger.
        """
        rates = [rate for size, rate in aligned if size <= _COMPARABLE * operations]
        known = bool(self.formulas.peaks) and operations >= _LARGE_FLOP
        return max(rates, default=self.formulas.peaks[0] * SLOW / 1e9 if self.formulas.peaks and known else 0.0)


def _is_odd(shapes: str) -> bool | None:
    """Return whether a product in 16 bits has a dimension that is not a multiple of 16 bytes, as tensor cores need.

    `shapes` is the recorded shape text of an operator. The result is None if the operator is not a product of 16-bit
    matrices, or if one of the matrices is a vector.
    """
    dims, types, _ = (decoded_list(part) for part in f"{shapes}\0\0".split("\0")[:3])
    matrices = [(size, str(kind)) for size, kind in zip(dims, types, strict=False) if _is_matrix(size)][-2:]
    if len(matrices) < 2 or any(kind not in _MULTIPLES for _, kind in matrices):
        return None
    sizes = [int(number) for size, _ in matrices for number in size[-2:]]
    return None if 1 in sizes else any(number % _MULTIPLES[matrices[0][1]] for number in sizes)


def _is_matrix(size: Any) -> bool:
    return isinstance(size, list) and len(size) >= 2 and all(isinstance(number, int) for number in size)
