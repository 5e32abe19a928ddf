"""Compute with unions of intervals `[start, end)` in integer nanoseconds, in which overlapping time counts once."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Integers, Mask, narrowed
from analyzers.traces.reading.numbering import distinct_values, rows_by_value
from analyzers.traces.reading.trace import (
    ANNOTATIONS,
    COMMUNICATION_NAMES,
    COPIES,
    HOST_LANE,
    LAUNCHES,
    NO_STEP,
    OPS,
    PEER_COPY,
    Trace,
)

TIMES_BELOW = 1 << 62
COMPUTE, COMMUNICATION, MEMORY = range(3)
KIND_NAMES = ("compute", "communication", "memory")


def merge(start: Column, end: Column) -> tuple[Integers, Integers]:
    """Return the starts and ends of disjoint intervals, ascending, that cover the same time as the given intervals.

    Intervals that touch are joined and empty ones are dropped: [0, 5), [3, 8), [8, 9), [20, 20) become [0, 9).
    """
    lasting = end > start
    if not lasting.all():
        start, end = start[lasting], end[lasting]
    if not len(start):
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    # An interval begins a new one of the union if all before it have ended.
    latest_end = np.maximum.accumulate(end)
    first = np.flatnonzero(np.append(True, start[1:] > latest_end[:-1]))
    return start[first], latest_end[np.append(first[1:], len(start)) - 1]


def union_length(start: Column, end: Column) -> int:
    low, high = merge(start, end)
    return int((high - low).sum())


def union_lengths(start: Column, end: Column, group: Column, count: int) -> Integers:
    """Return, for each group, the length in ns of the union of its intervals.

    `group` has the number of each interval's group, from 0 to `count` - 1. Example: [0, 5) and [3, 8) of group 0 and
    [3, 8) of group 2 give [8, 0, 5].
    """
    if not len(start):
        return np.zeros(count, np.int64)
    if count == 1:
        return np.array([union_length(start, end)], np.int64)
    low = int(start.min())
    stretch = int(end.max()) - low + 2
    if stretch * count >= TIMES_BELOW:
        return np.array([union_length(start[group == i], end[group == i]) for i in range(count)], np.int64)
    # Each group gets a stretch of time of its own, so that the groups are merged as one.
    shift = group * np.int64(stretch) - low
    starts, ends = merge(start + shift, end + shift)
    before = np.append(0, np.cumsum(ends - starts))
    return np.diff(before[np.searchsorted(starts, np.arange(count + 1) * np.int64(stretch))])


def spans(start: Column, end: Column, group: Column, count: int) -> Integers:
    """Return, for each group, the time from its first start to its last end in ns; 0 for a group without intervals."""
    if count == 1 and len(start):
        return np.array([int(end.max()) - int(start.min())], np.int64)
    first, last = np.full(count, np.iinfo(np.int64).max), np.full(count, np.iinfo(np.int64).min)
    np.minimum.at(first, group, start)
    np.maximum.at(last, group, end)
    return np.where(np.bincount(group, minlength=count) > 0, last - first, 0)


class CoveredTime:
    """A union of time intervals; its methods compute how much of it lies before a moment, or between two moments."""

    def __init__(self, start: Column, end: Column) -> None:
        self.start, self.end = merge(start, end)
        self.before = np.concatenate([[0], np.cumsum(self.end - self.start)])

    @property
    def total(self) -> int:
        return int(self.before[-1])

    def until(self, at: Column) -> Integers:
        """Return how many ns of the union lie before each moment in `at`."""
        begun = np.searchsorted(self.start, at, side="right")
        last = np.maximum(begun - 1, 0)
        if not len(self.start):
            return np.zeros(len(at), np.int64)
        # Of the interval around the moment the part behind it does not count.
        remaining = np.where(begun > 0, np.clip(self.end[last] - at, 0, None), 0)
        return self.before[begun] - remaining

    def between(self, low: Column, high: Column) -> Integers:
        return self.until(high) - self.until(low)


# Find out which event runs inside which: depths and parents within each lane (a thread of the host, or a stream).
#
# A trace records no call tree, only starts and ends. In one lane events nest as calls do, so the parent of an event
# is, among the events still running when it begins, the one that began last:
#
#     outer   [0, 100)                depth 0, no parent
#     first     [10, 40)              depth 1, parent outer
#     inner        [20, 30)           depth 2, parent first
#     second          [50, 90)        depth 1, parent outer
#
# The depth of an event is the number of events that began before it, minus the number that ended before it. Before
# `second` three events have begun and two have ended, so its depth is 1. Both numbers are found by sorting, so no loop
# over events is needed. The parent of an event is then the last event before it whose depth is less by one.

NONE = -1
"""The value that stands for "no event" in arrays of rows or indices."""


class NestedEvents(NamedTuple):
    """The columns of events: lane (thread or stream), start and end in ns, and the row of each event's parent."""

    lane: Column
    start: Column
    end: Column
    parent: Column


def nest(lane: Column, start: Column, end: Column) -> tuple[Column, Column]:
    """Return, for each event, its depth (the number of events that enclose it) and the row of the innermost of them.

    The row is NONE for an event that no other event encloses. Each event has a lane (thread or stream), a start and an
    end in ns. An event encloses the events of its lane that begin while it runs. An event without a duration counts as
    1 ns long.
    """
    end = np.maximum(end, start + 1)
    depth, parent = np.zeros(len(lane), np.int32), np.full(len(lane), NONE, np.int32)
    lanes = [_in_start_order(rows.astype(np.int32), start, end) for _, rows in rows_by_value(lane)]
    for rows in lanes:
        depth[rows] = np.arange(len(rows)) - _count_until(np.sort(end[rows], kind="stable"), start[rows])
    order = np.concatenate([*lanes, np.zeros(0, np.int32)])
    depth = narrowed(depth)  # 16 bits sort by radix
    index = np.argsort(depth[order], kind="stable").astype(np.int32)
    for outer, inner in _pairs_of_depths(depth[order][index], index):
        parent[order[inner]] = order[outer[np.searchsorted(outer, inner) - 1]]
    # The last event of the lower depth may have ended, or belong to the lane before: then this is no parent.
    parent = np.where((parent >= 0) & (end[parent] > start), parent, np.int32(NONE))
    misplaced = (depth > 0) & (parent == NONE)
    return _reparent(parent, start, end, order, misplaced) if misplaced.any() else (depth, parent)


def _in_start_order(rows: Column, start: Column, end: Column) -> Column:
    """Return `rows` in order of their start; if several events start at the same time, the longest comes first."""
    rows = rows[np.argsort(start[rows], kind="stable")]  # fast where they nearly are in order, as in most files
    at_once = np.diff(start[rows]) == 0
    ties = np.flatnonzero(np.append(at_once, False) | np.append(False, at_once))
    tied = rows[ties]
    rows[ties] = tied[np.lexsort((-end[tied], start[tied]))]
    return rows


def _count_until(moments: Column, at: Column) -> Integers:
    """Return, for each time in `at`, how many of `moments` are at or before it; both columns must be ascending.

    The two columns are merged by a stable sort, which is several times as fast as a search for each time.
    """
    order = np.argsort(np.concatenate([moments, at]), kind="stable")
    return np.flatnonzero(order >= len(moments)) - np.arange(len(at))


def _reparent(parent: Column, start: Column, end: Column, order: Column, misplaced: Mask) -> tuple[Column, Column]:
    """Return depth and parent of each event, corrected where events cross instead of enclosing each other.

    `misplaced` is a mask of the events for which `nest` found no parent, and `order` has all events by lane and start.
    Events cross if Python stacks are recorded: an annotation begins inside the call that opens it, and ends after this
    call has ended. Such an annotation becomes the parent of the events that begin while it runs. It is no longer a
    child of the calls that end before it does.
    """
    # Single numbers of a memoryview are those of Python, and several times as fast as those of NumPy.
    above, starts, ends = parent.data, np.ascontiguousarray(start).data, end.data
    at = np.flatnonzero(misplaced[order])
    for row, before in zip(order[at].tolist(), order[at - 1].tolist(), strict=True):
        around = before
        while around != NONE and ends[around] <= starts[row]:
            around = above[around]
        above[row] = around
        while around != NONE and above[around] != NONE and ends[above[around]] < ends[around]:
            above[around] = above[above[around]]
    return narrowed(_depths_of(parent)), parent


def _depths_of(parent: Column) -> Column:
    """Return how many events enclose each event; `parent` has the row of the event directly around each event.

    All events climb to their parents at once, and each round doubles how far they climb: a depth of 1000 takes 10
    rounds.
    """
    above = np.append(np.where(parent == NONE, len(parent), parent), len(parent))
    count = np.append(parent != NONE, False).astype(np.int32)
    while (above < len(parent)).any():
        count, above = count + count[above], above[above]
    return count[:-1]


def _pairs_of_depths(depth: Column, index: Column) -> Iterator[tuple[Column, Column]]:
    """Yield (items of `index` at depth d, items of `index` at depth d + 1), for each depth d but the last."""
    bounds = np.searchsorted(depth, np.arange(depth.max(initial=0) + 2))
    return pairwise([index[low:high] for low, high in pairwise(bounds)])


def innermost_selected(selected: Mask, parent: Column) -> Column:
    """Return, for each event, the row of the innermost selected event around it, or NONE.

    A selected event gets its own row. If outer encloses middle, middle encloses inner, and only outer is selected,
    all three get the row of outer.
    """
    nowhere = len(selected)
    above = np.where(selected, np.arange(nowhere, dtype=np.int32), np.where(parent < 0, np.int32(nowhere), parent))
    above = np.append(above, np.int32(nowhere))
    # Each round doubles how many parents are passed; those that are selected, and the end, lead to themselves.
    higher = above.take(above)
    climbing = np.flatnonzero(higher != above)
    above = higher
    while len(climbing):
        before = above.take(climbing)
        higher = above.take(before)
        above[climbing] = higher
        climbing = climbing[higher != before]
    return np.where(above[:-1] == nowhere, np.int32(NONE), above[:-1])


def innermost_at(events: NestedEvents, lane: Column, at: Column) -> Integers:
    """Return, for each time in `at` (ns), the row of the innermost event that runs at this time in its lane, or NONE.

    `lane` has the number of the lane for each of these times.
    """
    innermost = np.full(len(at), NONE)
    end = np.maximum(events.end, events.start + 1)
    for number, queries in rows_by_value(lane):
        rows = np.flatnonzero(events.lane == number)
        rows = rows[np.lexsort((-end[rows], events.start[rows]))]
        begun = np.searchsorted(events.start[rows], at[queries], side="right")
        innermost[queries] = np.append(rows, NONE)[begun - 1]  # before the first it is the last, which is NONE
    # What began last may have ended; what is around it may not.
    while (ended := (innermost != NONE) & (np.append(end, 0)[innermost] <= at)).any():
        innermost[ended] = events.parent[innermost[ended]]
    return innermost


def is_outermost(group: Column, start: Column, end: Column) -> Mask:
    """Return a mask of the events that are inside no other event of their group.

    `group` has the number of each event's group, from 0; two events of a group are nested or do not overlap.
    """
    order = _in_start_order(np.arange(len(start)), start, end)
    order = order[np.argsort(narrowed(group)[order], kind="stable")]  # a radix sort if the numbers fit into 16 bits
    # Each group gets a stretch of time of its own, so that one running maximum serves for all.
    latest_end = end[order] - start.min(initial=0) + 1
    stretch = min(int(latest_end.max(initial=0)) + 1, (1 << 62) // (int(group.max(initial=0)) + 1))
    shift = group[order] * np.int64(stretch)
    latest_end = np.maximum.accumulate(latest_end + shift)
    begins = start[order] - start.min(initial=0) + 1 + shift
    outermost = np.ones(len(order), bool)
    outermost[order[1:]] = (begins[1:] >= latest_end[:-1]) | (np.diff(group[order]) > 0)
    return outermost


def inclusive_sums(rows: Column, values: Column, parent: Column) -> Integers:
    """Return, for each event, the sum of the values of the event itself and of all events inside it.

    `rows` has, for each item of `values`, the row of the event that it belongs to; `parent` has the row of the event
    directly around each event.
    """
    sums = np.zeros(len(parent), np.int64)
    while len(rows):
        np.add.at(sums, rows, values)
        above = parent[rows]
        inside = above != NONE
        rows, values = above[inside], values[inside]
    return sums


def self_times(parent: Column, start: Column, end: Column) -> Integers:
    """Return the duration of each event without the events directly inside it, in ns.

    `parent` has the row of the event directly around each event, or NONE; `start` and `end` are in ns.
    """
    own: Integers = end - start
    inside = np.flatnonzero(parent >= 0)
    above = parent[inside]
    # Of an event that outlives its parent only the time inside the parent is taken from that.
    np.subtract.at(own, above, np.minimum(end[inside], end[above]) - start[inside])
    np.maximum(own, 0, out=own)
    return own


# gloo runs a collective, the wait for others included, inside such an annotation on a thread of its own.
_HOST_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc):")
_HOST_MESSAGE = re.compile(r":(send|recv)")
# Issuing a collective is not computing, and what autograd calls its own may do nothing but wait for one.
_LAUNCHES_KERNEL, _CAPTURES = re.compile(r"LaunchKernel(ExC)?$"), re.compile(r"StreamBeginCapture")
_HOST_OPERATOR = re.compile(r"^(?!_?c10d|autograd::|gloo|mpi|ucc|nccl|profiler::)\w+::")


@dataclass(frozen=True)
class Work:
    """The work (kernels, copies) of one device in one trace, or of a host without devices.

    Arrays have an entry per event. The events of a host are its operators and collectives. `rows` has the row of each
    event in the trace. `kind` is COMPUTE, COMMUNICATION or MEMORY. `launch` has the row of the call that launched the
    event, or NONE if it was not recorded; an event of a host has its own row there. `own` is the duration of the event
    in ns; on a host, where events call others, the time inside called events is left out.
    """

    trace: Trace
    device: int | None
    rows: Integers
    kind: Column
    launch: Column
    own: Column

    @cached_property
    def start(self) -> Column:
        """The start of each event, in ns of the trace's clock."""
        return self.trace.columns["start"][self.rows]

    @cached_property
    def end(self) -> Column:
        return self.trace.columns["end"][self.rows]

    @cached_property
    def linked(self) -> Mask:
        return np.asarray(self.launch != NONE)

    @cached_property
    def launch_start(self) -> Integers:
        """The start of the call that launched each event, in ns of the trace's clock; -1 if it was not recorded."""
        return np.where(self.linked, self.trace.columns["start"][self.launch], -1)

    @cached_property
    def launch_end(self) -> Integers:
        """The end of the call that launched each event, in ns of the trace's clock; -1 if it was not recorded."""
        return np.where(self.linked, self.trace.columns["end"][self.launch], -1)

    @cached_property
    def phase(self) -> Integers:
        """The phase of the step (such as forward) that launched each event, as an index into `phases.PHASE_NAMES`.

        It is -1 if the trace does not show which code launched the event.
        """
        return np.where(self.linked, self.trace.columns["phase"][self.launch], -1)

    @cached_property
    def expected_and_lost(self) -> tuple[int, int]:
        """The number of launches whose kernels should be in the file, and how many of these kernels are missing in it.

        Kernels launched at the end may run after the recording, so only launches before that of the last recorded
        kernel count. The result is (0, 0) if a CUDA graph was captured, as its launches run nothing, or if no launch is
        known.
        """
        trace, c = self.trace, self.trace.columns
        if not self.linked.any() or trace.text_matches(_CAPTURES).any():
            return 0, 0
        calls = trace.rows_named(trace.text_matches(_LAUNCHES_KERNEL), LAUNCHES)
        calls = calls[(c["correlation"][calls] >= 0) & (c["start"][calls] < self.launch_start[self.linked].max())]
        recorded = distinct_values(c["correlation"][trace.work])
        return len(calls), int((~np.isin(c["correlation"][calls], recorded)).sum())

    def step(self) -> Integers:
        """Return, for each event, the index in `trace.steps` of the step that launched it, or NO_STEP.

        A kernel belongs to the step that launched it, even if it runs while the host is already in the next step.
        """
        return np.where(self.linked, self.trace.step_index_at(self.launch_start), NO_STEP)


def work_of_accounts(trace: Trace) -> list[Work]:
    if not len(trace.work):
        return [_host_work(trace)]
    return [_device_work(trace, int(device)) for device in distinct_values(trace.devices)]


def _device_work(trace: Trace, device: int) -> Work:
    c = trace.columns
    rows = trace.work[trace.devices == device]
    communicates = trace.text_matches(COMMUNICATION_NAMES)[c["name"][rows]] | np.isin(rows, c["collective_row"])
    kind = np.where(communicates, np.int8(COMMUNICATION), np.int8(COMPUTE))
    # A copy stays one, whatever it is called, unless it goes to another device.
    kind[trace.category_matches(COPIES)[rows] & ~trace.text_matches(PEER_COPY)[c["name"][rows]]] = MEMORY
    return Work(
        trace=trace,
        device=device,
        rows=rows,
        kind=kind,
        launch=launching_rows(trace, c["correlation"][rows]),
        own=c["end"][rows] - c["start"][rows],
    )


def launching_rows(trace: Trace, correlation: Column) -> Integers:
    """Return, for each correlation id of a kernel, the trace row of the call that launched it, or NONE.

    A kernel and the call that launched it have the same id. All kernels of one launched CUDA graph share the id of its
    launch.
    """
    calls = np.flatnonzero(trace.category_matches(LAUNCHES) & (trace.columns["correlation"] >= 0))
    if not len(calls):
        return np.full(len(correlation), NONE)
    calls = calls[np.argsort(trace.columns["correlation"][calls], kind="stable")]
    known = trace.columns["correlation"][calls]
    candidate = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    return np.where(known[candidate] == correlation, calls[candidate], NONE)


def launched_rows(trace: Trace, row: int) -> tuple[Integers, Integers]:
    """Return the trace rows of the device work that a host event launched, and the row of each one's launching call.

    Calls inside the event (an operator or a step, for example) count, too. The work is in order of its start.
    """
    c = trace.columns
    start, end = c["start"], c["end"]
    inside = (c["lane"] == c["lane"][row]) & (start >= start[row]) & (end <= end[row])
    calls = inside & trace.category_matches(LAUNCHES) & (c["correlation"] >= 0)
    correlation = c["correlation"][trace.work]
    work = trace.work[np.isin(correlation, c["correlation"][calls])]
    work = work[np.argsort(start[work], kind="stable")]
    return work, launching_rows(trace, c["correlation"][work])


def _host_work(trace: Trace) -> Work:
    """Return the work of a host: its operators and the collectives that ran on it.

    Operators on the threads that run the collectives are left out.
    """
    c = trace.columns
    collective = trace.name_matches(_HOST_COLLECTIVE) & trace.category_matches(ANNOTATIONS)
    # Only a send or a receive is in the lane of the thread that calls it, which computes beside it.
    collective_lanes = distinct_values(c["lane"][collective & ~trace.name_matches(_HOST_MESSAGE)])
    operators = trace.category_matches(OPS) & trace.name_matches(_HOST_OPERATOR)
    working = collective | (operators & ~np.isin(c["lane"], collective_lanes))
    rows = np.flatnonzero(working)
    # The own time of an operator leaves out the operators that it calls, however many other events lie between.
    innermost = innermost_selected(working, c["parent"])
    around = np.where(c["parent"] >= 0, innermost[c["parent"]], NONE)
    return Work(
        trace=trace,
        device=None,
        rows=rows,
        kind=np.where(collective[rows], np.int8(COMMUNICATION), np.int8(COMPUTE)),
        launch=rows,
        own=self_times(np.where(working, around, NONE), c["start"], c["end"])[rows],
    )


OTHER = "other"
FORWARD, BACKWARD, GC = "forward", "backward", "gc"
# What our recorders, torchtitan ("fwd_bwd"), TorchRec ("## forward ##") and PyTorch itself call the parts of a step.
_PATTERNS = {
    FORWARD: r"^(#+ )?(fwd|forward)( #+)?$|\.forward$",
    BACKWARD: r"^(#+ )?(bwd|backward)( #+)?$|^autograd::engine::evaluate_function",
    "forward and backward": r"^fwd_bwd$",
    "optimizer": r"^(#+ )?optim(izer)?( #+)?$|^Optimizer\.step",
    "zero_grad": r"zero_grad",
    "data": r"data_?wait|data_?load|fetching_batch|^(#+ )?next_batch",
    "h2d": r"^h2d$|copy_batch_to_gpu",
    "grad_clip": r"grad_clip|clip_grad",
    "loss_sync": r"^loss_sync$|collect_dist_metrics",
    GC: r"^gc(_collect)?$",
    "checkpoint": r"ckpt_save|checkpoint_save",
    "eval": r"^(#+ )?eval",
    "log": r"^log$",
    "profiler": r"^(profiler|snapshot)$",
}
PHASE_NAMES = [*_PATTERNS, OTHER]
UNNAMED = PHASE_NAMES.index(OTHER)
HOST_PHASES = [
    name for name in _PATTERNS if name not in (FORWARD, BACKWARD, "forward and backward", "optimizer", "grad_clip")
]
"""The phases in which the host does work of its own, such as loading data, and launches no work of the model."""
PHASE_PATTERNS = {name: re.compile(pattern, re.IGNORECASE) for name, pattern in _PATTERNS.items()}
_ANY_PHASE = re.compile("|".join(_PATTERNS.values()), re.IGNORECASE)


def phases(trace: Trace, parent: Column, lane: Column) -> Column:
    """Return the phase of each event, as an index into PHASE_NAMES.

    The phase comes from annotations: the innermost annotation with the name of a phase around the event decides. If no
    annotation of the trace denotes the forward pass, events without a phase count as forward up to the first backward
    operator of their step. `parent` has the row of the event directly around each event, `lane` the number of its
    thread or stream.
    """
    own = trace.text_values(phase_of)[trace.columns["name"]]
    annotates = (own < UNNAMED) & trace.category_matches(ANNOTATIONS) & trace.lane_is(HOST_LANE)[lane]
    around = innermost_selected(annotates, parent)
    phase = np.where(around >= 0, own[around], UNNAMED).astype(np.int8)
    return _infer_forward(trace, phase)


def phase_intervals(trace: Trace, names: Sequence[str]) -> tuple[Column, Column]:
    rows = trace.rows_named(names_in_phases(trace, names), ANNOTATIONS)
    return trace.columns["start"][rows], trace.columns["end"][rows]


def names_in_phases(trace: Trace, names: Sequence[str]) -> Mask:
    return np.isin(trace.text_values(phase_of), [PHASE_NAMES.index(name) for name in names])


def phase_of(name: str) -> int:
    if not _ANY_PHASE.search(name):  # so it is for nearly all of what may be a million names
        return UNNAMED
    return next(i for i, pattern in enumerate(PHASE_PATTERNS.values()) if pattern.search(name))


def _infer_forward(trace: Trace, phase: Column) -> Column:
    """Return the phase of each event, with "forward" for unnamed events before the backward pass of their step.

    `phase` has the phases so far. An event without a phase gets "forward" if it begins before the first backward
    operator of its step. The array `phase` itself is returned if some annotation already denotes the forward pass.
    """
    if FORWARD in {PHASE_NAMES[i] for i in distinct_values(phase)}:
        return phase
    start = trace.columns["start"]
    backward = np.sort(start[phase == PHASE_NAMES.index(BACKWARD)])
    for _, begin, end in trace.steps:
        first = np.searchsorted(backward, begin)
        if first < len(backward) and backward[first] < end:
            early = (start >= begin) & (start < backward[first]) & (phase == UNNAMED)
            phase = np.where(early, np.int8(PHASE_NAMES.index(FORWARD)), phase)
    return phase
