"""Find matrix products that do not use the tensor cores, or use them badly because of their sizes."""

import math
import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.columns import COMPUTE, NONE, PHASE_NAMES, Work, innermost_selected
from analyzers.traces.costs import Attribution, of_rows
from analyzers.traces.flops import Formulas, decoded_inputs, decoded_list, is_pointwise, multiplies
from analyzers.traces.reading.numbering import distinct_values, factorize, rows_by_value
from analyzers.traces.reading.trace import ANNOTATIONS

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
    dims, types, _ = decoded_inputs(shapes)
    matrices = [(size, str(kind)) for size, kind in zip(dims, types, strict=False) if _is_matrix(size)][-2:]
    if len(matrices) < 2 or any(kind not in _MULTIPLES for _, kind in matrices):
        return None
    sizes = [int(number) for size, _ in matrices for number in size[-2:]]
    return None if 1 in sizes else any(number % _MULTIPLES[matrices[0][1]] for number in sizes)


def _is_matrix(size: Any) -> bool:
    return isinstance(size, list) and len(size) >= 2 and all(isinstance(number, int) for number in size)


_FUSED_AT_MOST = 15
"""The largest number of pointwise operators that a compiler is assumed to fuse into one kernel."""
_FUSABLE_STEP = re.compile(r"^Optimizer\.step#(Adam|AdamW|SGD|Adagrad)\.step$")
"""Matches the optimizers that have a fused version."""
_FOREACH = re.compile(r"multi_tensor_apply_kernel(?!.*Fused)")
_MEMSET = re.compile(r"^Memset\b")
_FUSED_PER_PASS = 7 / 4
"""The time of a fused Adam over that of the longest foreach pass: it moves seven tensors, the pass four."""


def fusable_shortening(attribution: Attribution) -> Integers:
    """Return by how many ns each event of `work` would be shorter if pointwise kernels were fused or left out."""
    work = attribution.work
    pointwise = named(work, is_pointwise) & (work.kind == COMPUTE)
    chains = _chain_shortening(work, pointwise)
    # A gradient that is None needs no zeros: the first backward pass writes it.
    filled = ((work.kind == COMPUTE) | named(work, _MEMSET.search)) & (work.phase == PHASE_NAMES.index("zero_grad"))
    return np.where(filled, work.own, np.maximum(chains, _foreach_shortening(attribution)))


def named(work: Work, matches: Callable[[str], object]) -> Mask:
    texts = np.array([bool(matches(name)) for name in work.trace.names] or [False])
    return np.asarray(texts[work.trace.columns["name"][work.rows]])


def _chain_shortening(work: Work, pointwise: Mask) -> Integers:
    """Return by how many ns each event of `work` would be shorter if consecutive pointwise kernels were fused.

    `pointwise` selects these kernels. At most FUSED_AT_MOST of them become one, which is assumed to take as long as the
    longest of them.
    """
    # Only kernels of one stream with no other one between them can become one.
    lane = work.trace.columns["lane"][work.rows]
    order = np.lexsort((work.start, lane))
    fusable, lane = pointwise[order], lane[order]
    begins = np.append(True, (np.diff(lane) != 0) | ~fusable[1:] | ~fusable[:-1])[: len(order)]
    first = np.flatnonzero(begins)
    run = np.cumsum(begins) - 1
    position = np.arange(len(order)) - first[run]
    # No compiler makes one kernel of any number of operators.
    parts = np.flatnonzero(begins | (position % _FUSED_AT_MOST == 0))
    spent = work.own[order].astype(np.int64)
    longest = np.maximum.reduceat(spent, parts)
    total = np.add.reduceat(spent, parts)
    which = np.repeat(np.arange(len(parts)), np.diff(np.append(parts, len(order))))
    shorter = np.zeros(len(order), np.int64)
    shorter[order] = np.where(fusable, spent * (1 - longest[which] / np.maximum(total[which], 1)), 0)
    return shorter


def _foreach_shortening(attribution: Attribution) -> Integers:
    """Return by how many ns each event of `work` would be shorter if a fused optimizer replaced foreach operators.

    Example: AdamW makes eight passes over the parameters, which take 12 ms together and the longest of them 2.4 ms. A
    fused one takes about 2.4 ms * 7 / 4 = 4.2 ms, so each kernel could be shorter by 65 %.
    """
    work, c = attribution.work, attribution.trace.columns
    shorter = np.zeros(len(work.rows), np.int64)
    steps = np.zeros(len(c["start"]), bool)
    steps[work.trace.rows_named(work.trace.text_matches(_FUSABLE_STEP), ANNOTATIONS)] = True
    if not steps.any() or work.device is None:
        return shorter
    around = innermost_selected(steps, c["parent"])
    step = np.where(work.linked & named(work, _FOREACH.search), around[work.launch], NONE)
    operator = attribution.around("operator")[work.launch]
    for number, mine in rows_by_value(step):
        if number != NONE:
            passes = [int(work.own[mine][same].sum()) for _, same in rows_by_value(operator[mine])]
            part = 1 - _FUSED_PER_PASS * max(passes) / max(1, sum(passes))
            shorter[mine] = (work.own[mine] * max(0.0, part)).astype(np.int64)
    return shorter


def parts_of_step(work: Work, events: Mask) -> dict[str, float]:
    """Return the shares of the time of `events` in zero_grad and in the optimizer, as far as they are not 0."""
    total = max(1, int(work.own[events].sum()))
    named_parts = {"in_zero_grad": "zero_grad", "in_optimizer": "optimizer"}
    inside = {key: work.phase == PHASE_NAMES.index(phase) for key, phase in named_parts.items()}
    shares = {key: int(work.own[events & mine].sum()) / total for key, mine in inside.items()}
    return {key: value for key, value in shares.items() if value}


# Find losses over a large vocabulary that are computed in several steps, each of which passes over all logits.
#
# Example: 8192 tokens and a vocabulary of 128 256 have 1.05 billion logits. A cast to float32 (6.3 GB read and
# written), log-softmax (8.4 GB), its backward pass (12.6 GB) and the cast back (6.3 GB) take 10 ms on an H100. A
# fused loss reads the logits in 16 bits once, and in the backward pass reads and writes them once: 6.3 GB, 1.9 ms.

FORWARD = "aten::_log_softmax"
_VOCABULARY_AT_LEAST = 16_384
_LEAST_PASSES, _LEAST_BYTES = 3, 2
"""A fused loss reads 16-bit logits in the forward pass, and reads and writes them in the backward pass."""


class Logits(NamedTuple):
    tokens: int
    vocabulary: int


def cross_entropy_shortening(attribution: Attribution, formulas: Formulas) -> Integers:
    """Return by how many ns each event of `work` would be shorter if a fused kernel computed losses over logits.

    The value is 0 for all events that are no part of such a loss, and if the bandwidth of the device's memory is not
    known.
    """
    work, c = attribution.work, attribution.trace.columns
    nothing = np.zeros(len(work.rows), np.int64)
    softmax = attribution.trace.text_matches({FORWARD})[c["name"][c["shape_row"]]]
    texts, calls = factorize(c["shape_text"][softmax])
    losses = [_logits_of(c.meta["shapes"][number])[:1] for number in texts.tolist()]
    sizes = {size for first in losses for size in first}
    if not sizes or not formulas.peaks:
        return nothing
    counts = np.bincount(calls, minlength=len(losses)).tolist()
    elements = sum(math.prod(size) * count for first, count in zip(losses, counts, strict=True) for size in first)
    least_ns = elements * _LEAST_PASSES * _LEAST_BYTES / formulas.peaks[1] * 1e9
    mine = _passes_over(attribution, sizes)
    part = max(0.0, 1 - least_ns / max(1, int(work.own[mine].sum())))
    return np.where(mine, work.own * part, 0).astype(np.int64)


def _passes_over(attribution: Attribution, sizes: AbstractSet[Logits]) -> Mask:
    """Return a mask of the events in `work` that read or write logits of the sizes `sizes`, except for products."""
    work, c = attribution.work, attribution.trace.columns
    known = c.meta["shapes"]
    touching = [n for n in distinct_values(c["shape_text"]).tolist() if not sizes.isdisjoint(_logits_of(known[n]))]
    on_logits = np.zeros(len(c["start"]), bool)
    on_logits[c["shape_row"][np.isin(c["shape_text"], touching)]] = True
    inside = innermost_selected(on_logits, c["parent"])
    multiplying = named(work, multiplies)
    return np.asarray(work.linked & (inside[work.launch] != NONE) & (work.kind == COMPUTE) & ~multiplying)


def _logits_of(shapes: str) -> list[Logits]:
    """Return the sizes of an operator's inputs that can be logits [..., vocabulary], from its shape text."""
    inputs = decoded_list(shapes.split("\0", maxsplit=1)[0])
    tensors = (size for size in inputs if isinstance(size, list) and len(size) >= 2)
    whole = (size for size in tensors if all(isinstance(number, int) for number in size))
    return [Logits(math.prod(size[:-1]), size[-1]) for size in whole if size[-1] >= _VOCABULARY_AT_LEAST]
