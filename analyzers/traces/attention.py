"""Find attention that is written as matrix products and a softmax, and could be one fused kernel.

It is recognised by its operators: a softmax between two batched products on one thread, with only elementwise work in
between. The softmax of a router, or over a vocabulary, differs: it has other operators around it, or its last
dimensions are not sequence lengths.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.columns import NONE, innermost_selected
from analyzers.traces.costs import Attribution
from analyzers.traces.flops import Formulas, decoded_inputs, decoded_list
from analyzers.traces.model import FallbackReason
from analyzers.traces.reading.trace import OPS

_MASK, _DROPOUT, _GROUPED = 3, 4, 7
"""The positions of these arguments of `aten::scaled_dot_product_attention`; the first three are q, k and v."""
_HALF = {"c10::Half", "c10::BFloat16"}
_TYPES_OF_GPU = _HALF | {"float"}
_TYPES_OF_CPU = _TYPES_OF_GPU | {"double"}
_LARGEST_HEAD = 256


class Call(NamedTuple):
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
        has_mask = len(self.dims) > _MASK and bool(self.dims[_MASK])
        return str(self.types[_MASK]) if has_mask and len(self.types) > _MASK else ""

    @property
    def dropout(self) -> bool:
        return self.value(_DROPOUT) not in ("", "0.", "0", "0.0")


def _call_of(shapes: str) -> Call | None:
    call = Call(*decoded_inputs(shapes))
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
    return len({size[-1] for size in call.tensors}) > 1


SOFTMAX = {"aten::_softmax", "aten::_softmax_backward_data"}
BACKWARD = "aten::_softmax_backward_data"
_SDPA, MATH = "aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math"
"""PyTorch's operator for attention, and the kernel that it takes if no fused one fits."""
_BATCHED = {"aten::bmm", "aten::baddbmm"}
_OTHER_PRODUCTS = {
    "aten::mm", "aten::addmm", "aten::convolution", "aten::_scaled_mm", "aten::_log_softmax", "aten::embedding",
    "aten::native_layer_norm",
}  # fmt: skip
_LENGTH_AT_LEAST, _HEAD_AT_MOST = 128, 512
"""The shortest sequence for which fusing helps, and the largest head dimension."""
_KERNELS_AT_MOST = 24
"""The most kernels of one attention, forward or backward; longer sequences belong to something else."""


@dataclass(frozen=True)
class Attentions:
    """The attentions of a device or host that are not one fused kernel.

    Each is a chain of operators: batched matrix product, softmax, batched matrix product.
    """

    attribution: Attribution
    formulas: Formulas

    @cached_property
    def shape_of(self) -> dict[int, str]:
        c = self.attribution.trace.columns
        return dict(zip(c["shape_row"].tolist(), c["shape_text"].tolist(), strict=True))

    @cached_property
    def operators(self) -> Integers:
        """The trace rows of all operators among which attention is searched, in order of thread and start.

        These are softmaxes and batched matrix products. Others, such as ordinary matrix products and embeddings, are
        included for exclusion: if one of them is next to a softmax, the softmax is not attention.
        """
        trace = self.attribution.trace
        c = trace.columns
        rows = trace.rows_named(trace.text_matches(SOFTMAX | _BATCHED | _OTHER_PRODUCTS), OPS)
        return rows[np.lexsort((c["start"][rows], c["lane"][rows]))]

    @cached_property
    def chains(self) -> list[tuple[int, Integers, int]]:
        """For each attention: the trace row of its softmax, its events as indices in `work`, ns of one fused kernel."""
        trace = self.attribution.trace
        if not trace.text_matches(SOFTMAX).any():
            return []
        operators = self.operators
        names = [trace.names[i] for i in trace.columns["name"][operators].tolist()]
        softmaxes = [i for i, name in enumerate(names) if name in SOFTMAX]
        found = ((int(operators[i]), self.chain(names, i)) for i in softmaxes)
        return [(row, *chain) for row, chain in found if chain is not None]

    def fallbacks(self) -> list[FallbackReason]:
        """Return why attentions that call PyTorch's fused operator get its math kernel; empty if none does."""
        trace = self.attribution.trace
        is_math = trace.text_matches({MATH})[trace.columns["name"]]
        if not is_math.any():
            return []
        inside = innermost_selected(is_math, trace.columns["parent"])
        calls = {int(inside[row]) for row, *_ in self.chains if inside[row] != NONE}
        return sorted({self.reason(row, inside) for row in calls})

    def reason(self, row: int, inside: Column) -> FallbackReason:
        """Return the likely reason of one call of the math kernel, the operator in trace row `row`.

        `inside` has, for each event, the row of the math kernel around it.
        """
        trace = self.attribution.trace
        c = trace.columns
        above = int(c["parent"][row])
        is_call = above >= 0 and trace.names[c["name"][above]] == _SDPA and above in self.shape_of
        text = self.shape_of.get(above if is_call else row)
        shapes = "" if text is None else c.meta["shapes"][text]
        names = {trace.names[name] for name in np.unique(c["name"][inside == row]).tolist()}
        return reason_of(shapes, sorted(names), on_gpu=self.attribution.work.device is not None)

    def chain(self, names: list[str], index: int) -> tuple[Integers, int] | None:
        """Return the attention around one softmax as (events, ns): indices in `work`, and the ns of a fused kernel.

        `names` are the names of `operators`; `index` is the index of the softmax among them. The result is None if the
        operators around the softmax are not those of attention.
        """
        # Backward multiplies twice on either side: for v and for the scores, then for q and for k.
        times = 2 if names[index] == BACKWARD else 1
        before, after = list(range(index - times, index)), list(range(index + 1, index + 1 + times))
        products = [i for i in before + after if 0 <= i < len(names) and names[i] in _BATCHED]
        lane = self.attribution.trace.columns["lane"][self.operators]
        if len(products) < 2 * times or any(lane[i] != lane[index] for i in products):
            return None
        if not self.is_sequence(int(self.operators[index])):
            return None
        rows = self.operators[products[0]], self.operators[products[-1]]
        events = self.launched_between(*(int(row) for row in rows))
        # At least the softmax beside the products; many more are something else.
        if not 2 * times < len(events) <= _KERNELS_AT_MOST:
            return None
        return events, self.least_ns([int(self.operators[i]) for i in products])

    def is_sequence(self, row: int) -> bool:
        """Return whether the softmax in trace row `row` is over a [..., n, m] array whose last two sizes are large.

        The scores of attention between long sequences have such sizes; the scores of a classifier do not. The result is
        True if no shapes were recorded.
        """
        if row not in self.shape_of:
            return True
        sizes = self.sizes(row)
        last = sizes[0][-2:] if sizes and len(sizes[0]) >= 3 else []
        return len(last) == 2 and all(isinstance(size, int) and size >= _LENGTH_AT_LEAST for size in last)

    def sizes(self, row: int) -> list[list[int]]:
        text = self.attribution.trace.columns.meta["shapes"][self.shape_of[row]] if row in self.shape_of else ""
        return [size for size in decoded_list(text.split("\0")[0]) if isinstance(size, list)]

    @cached_property
    def launched(self) -> tuple[Integers, Integers]:
        """The indices in `work` of events with a known launch, and the lanes of the threads that launched them.

        Both are in order of thread and launch.
        """
        work = self.attribution.work
        linked = np.flatnonzero(work.linked)
        lane = work.trace.columns["lane"][work.launch[linked]]
        order = np.lexsort((work.launch_start[linked], lane))
        return linked[order], np.asarray(lane[order], np.int64)

    def launched_between(self, first: int, last: int) -> Integers:
        """Return the indices in `work` of the events that one thread launched between two operators, both included.

        `first` and `last` are the trace rows of the two operators.
        """
        c, work = self.attribution.trace.columns, self.attribution.work
        if work.device is None:
            return self.computed_between(first, last)
        events, lanes = self.launched
        low, high = np.searchsorted(lanes, c["lane"][first]), np.searchsorted(lanes, c["lane"][first], side="right")
        mine = events[low:high]
        at = work.launch_start[mine]
        return mine[np.searchsorted(at, c["start"][first]) : np.searchsorted(at, c["end"][last])]

    def computed_between(self, first: int, last: int) -> Integers:
        """Return the indices in `work` of the operators that a host ran between two operators, both included.

        `first` and `last` are the trace rows of the two operators. At most the KERNELS_AT_MOST longest ones are
        returned.
        """
        c, work = self.attribution.trace.columns, self.attribution.work
        inside = (work.start >= c["start"][first]) & (work.end <= c["end"][last])
        inside &= (c["lane"][work.rows] == c["lane"][first]) & (work.own > 0)
        indices = np.flatnonzero(inside)
        # Views take next to no time on a host, and there are many.
        return indices[np.argsort(-work.own[indices], kind="stable")[:_KERNELS_AT_MOST]]

    def least_ns(self, products: list[int]) -> int:
        """Return the ns that some matrix products need at the device's peak rate; their recorded time if it is unknown.

        `products` are the trace rows of the products.
        """
        operations = sum(self.operations.get(row, 0) for row in products)
        if operations and self.formulas.peaks:
            return round(operations / self.formulas.peaks[0] * 1e9)
        spans = [self.launched_between(row, row) for row in products]
        return int(self.attribution.work.own[np.concatenate(spans)].sum())

    @cached_property
    def operations(self) -> dict[int, int]:
        rows, operations, _ = self.formulas.rows
        return dict(zip(rows.tolist(), operations.tolist(), strict=True))
