"""Find pointwise kernels that one kernel could replace, and those that nothing needs: fills of gradients with zeros."""

import re
from collections.abc import Callable

import numpy as np

from analyzers.columns import Integers, Mask
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.columns.intervals import COMPUTE
from analyzers.traces.columns.nesting import NONE, innermost_selected
from analyzers.traces.columns.phases import PHASE_NAMES
from analyzers.traces.columns.work import Work
from analyzers.traces.opportunities.kernel_kinds import is_pointwise
from analyzers.traces.reading.distinct import rows_by_value
from analyzers.traces.reading.trace import ANNOTATIONS

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
    """Return a mask of the events in `work` whose name the function `matches` accepts."""
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
