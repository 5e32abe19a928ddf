"""Find out when a device waits for its host: in few of the steps, or after a call that emptied the launch queue.

Example: in each step the host reads the loss with `.item()`, and then needs 3 ms for other work. At the end of
`.item()` all launched kernels have ended, so the device has nothing to do for 3 ms. Without the call the host would
have launched kernels ahead, and its other work would cost nothing.
"""

import re
from collections import Counter

import numpy as np

from analyzers.columns import Integers
from analyzers.traces.answers.costs import Attribution
from analyzers.traces.answers.idle import Intervals
from analyzers.traces.columns.nesting import NONE
from analyzers.traces.opportunities.waits import RAMP_NS, pauses
from analyzers.traces.opportunity_model import NamedTime
from analyzers.traces.reading.trace import LAUNCHES, OPS, Trace

STEPS_AT_LEAST, FEW, _NEARLY_ALL = 4, 0.25, 0.9
"""A wait is one of few steps if these are at most a quarter of at least four, and have nine tenths of its time."""
MOST = 0.5
"""The share of the waiting that must follow a call that emptied the queue for the call to be named."""
_INTERVALS_AT_MOST = 1000
_EMPTIES_QUEUE = re.compile(r"(Stream|Device|Event)Synchronize$|^(cuda|hip)Memcpy(WithStream)?$")
"""Matches the runtime calls that return when the device has ended all its work, or that of a stream."""


def few_steps(trace: Trace, intervals: Intervals) -> dict[str, float]:
    """Return {"in_steps": how many steps have nearly all of the waiting, "longest_step": number of the worst one}.

    The result is empty if the waiting is spread over many steps. `intervals` are those in which the device waits.
    """
    start, end = intervals
    index = trace.step_index_at(start)
    inside = index >= 0
    if len(trace.steps) < STEPS_AT_LEAST or not inside.any():
        return {}
    spent = np.bincount(index[inside], weights=(end - start)[inside], minlength=len(trace.steps))
    order = np.argsort(-spent, kind="stable")
    needed = int(np.searchsorted(np.cumsum(spent[order]), _NEARLY_ALL * float((end - start).sum()))) + 1
    few = needed <= FEW * len(trace.steps)
    return {"in_steps": needed, "longest_step": trace.steps[int(order[0])][0]} if few else {}


def emptied_by(attribution: Attribution, intervals: Intervals) -> list[NamedTime]:
    """Return the call after which most of the waiting begins, because the host waited in it for the device.

    The result has the call's outermost operator, such as `aten::item`, and the function in the user's own files around
    it if Python stacks were recorded; each with the number of waits after it and their time. It is empty if most waits
    follow no such call.
    """
    work = attribution.work
    c, calls = work.trace.columns, work.trace.rows_named(work.trace.text_matches(_EMPTIES_QUEUE), LAUNCHES)
    calls = calls[np.argsort(c["end"][calls], kind="stable")]
    longest = np.argsort(intervals[0] - intervals[1], kind="stable")[:_INTERVALS_AT_MOST]
    start, end = intervals[0][longest], intervals[1][longest]
    if not len(calls) or not len(start):
        return []
    idle_from, _, _ = pauses(work)
    idle_from = np.sort(idle_from)
    since = idle_from[np.maximum(np.searchsorted(idle_from, start, side="right") - 1, 0)]
    index = np.searchsorted(c["end"][calls], since)
    call = calls[np.minimum(index, len(calls) - 1)]
    # The call began while the device still worked, and ended when it had nothing left to do.
    follows = (index < len(calls)) & (c["end"][call] <= np.minimum(start + RAMP_NS, end)) & (c["start"][call] <= since)
    if (end - start)[follows].sum() < MOST * (end - start).sum():
        return []
    return named(attribution, call[follows], (end - start)[follows])


def named(attribution: Attribution, calls: Integers, spent: Integers) -> list[NamedTime]:
    """Return the operator and the user's function around most of the time after `calls`, `spent` (ns) after each."""
    trace, line = attribution.trace, attribution.around("line")
    time, count = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for call, ns in zip(calls.tolist(), spent.tolist(), strict=True):
        function = int(line[call])
        place = trace.names[trace.columns["name"][function]] if function != NONE else ""
        key = _operator_around(trace, call), place
        time[key] += ns
        count[key] += 1
    [(most, total)] = time.most_common(1)
    return [NamedTime(name=name, count=count[most], total_ns=total) for name in most if name]


def _operator_around(trace: Trace, row: int) -> str:
    """Return the name of the outermost operator of PyTorch around a runtime call, or the call's own name."""
    c, name = trace.columns, str(trace.names[trace.columns["name"][row]])
    operates = trace.category_matches(OPS)
    above = int(c["parent"][row])
    while above >= 0:
        around = str(trace.names[c["name"][above]])
        if operates[above] and around.startswith("aten::"):
            name = around
        above = int(c["parent"][above])
    return name
