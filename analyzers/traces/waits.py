"""Find out what the host did while the device waited for it; each ns of this waiting has one cause.

Example: the device has no work from 0 to 20 ms. The host is in the data loader until 15 ms, then runs operators, and
launches the next kernel at 20 ms: 15 ms count for the loader, 5 ms for launching.

A call in which the host waits for the device costs more than its own time: when it returns, the device has no work
left, and stays idle until the host has launched new work. So this idle time also counts for the call: at most `RAMP_NS`
of it, and at most as much as the duration of the call.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.columns import NONE, CoveredTime, Work, merge, names_in_phases
from analyzers.traces.costs import Attribution
from analyzers.traces.kernels import COMPILATION
from analyzers.traces.launches import Intervals, intersect, subtract, union, waiting_calls
from analyzers.traces.model import NamedTime, OpportunityKind
from analyzers.traces.reading.trace import ANNOTATIONS, HOST_LANE, LAUNCHES, OPS, PROFILER_STEP, Trace

_LOADER = re.compile(r"^enumerate\(DataLoader\)#|DataLoaderIter\.__next__$")
DRIVER_MEMORY = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|HostRegister|HostMalloc)|^cuMem(Map|Unmap|Create|Release)"
)
_COMPILING = re.compile(rf"{COMPILATION.pattern}|\(dynamo_timed\)$")
"""Matches the parts of torch.compile that take time of the host, such as the choice of a kernel by measuring."""
_SYNCHRONISING = re.compile(
    r"Synchronize$|^aten::(item|_local_scalar_dense|nonzero|is_nonzero|_unique2?|masked_select)$"
)
_DDP_FORWARD = re.compile(r"^DistributedDataParallel\.forward$")
BROADCAST = re.compile(r"^(c10d::broadcast_|aten::(un)?flatten_dense_tensors)$")
"""Matches the operators by which DistributedDataParallel broadcasts buffers, joined into one tensor."""
_OWN_WORK = ("gc", "checkpoint", "eval", "log", "profiler")
"""The phases in which the host runs Python or calls that launch nothing."""
RAMP_NS, _STRETCH_NS, _LAUNCH_AT_MOST_NS = 200_000, 500_000, 5_000_000
"""The times in ns by which the causes of waiting for the host are distinguished.

A host needs at most `RAMP_NS` to catch up after a call that waited for the device. Python that takes longer than
`_STRETCH_NS` is a cause of waiting of its own, and so is an operator that takes longer than `_LAUNCH_AT_MOST_NS`. A
launching call that takes longer than that loads or compiles code.
"""


@dataclass(frozen=True)
class Gaps:
    """Intervals (ns of the trace's clock) in which a device has no work because the next kernel is not launched yet.

    `launched_by` has, for each interval, the lane number of the thread that launches this next kernel. It is NONE if
    that is unknown, or if there is no next kernel before the last step ends.
    """

    start: Integers
    end: Integers
    launched_by: Integers

    def select(self, rows: Mask) -> "Gaps":
        return Gaps(self.start[rows], self.end[rows], self.launched_by[rows])


def _gaps_of(work: Work) -> Gaps:
    """Return the gaps in a device's work, including those before the first and after the last event of its steps."""
    begin, end, next_event = pauses(work)
    # On a host the events are the work itself: nothing launches them.
    if work.device is None:
        return Gaps(begin, end, np.full(len(begin), NONE))
    known = next_event != NONE
    linked = known & work.linked[next_event]
    until = np.where(linked, np.clip(work.launch_end[next_event], begin, end), np.where(known, begin, end))
    lane = np.where(linked, work.trace.columns["lane"][work.launch[next_event]], NONE)
    return Gaps(begin, until, lane).select(until > begin)


def pauses(work: Work) -> tuple[Integers, Integers, Integers]:
    """Return the intervals in which a device runs nothing: their starts, ends, and for each the event that ends it.

    An event is an index into `work`; it is NONE if the last step ends before the device runs anything.
    """
    busy_start, busy_end = merge(work.start, work.end)
    # Of events that begin at once, one whose launch is known comes first.
    order = np.lexsort((~work.linked, work.start))
    following = order[np.searchsorted(work.start[order], busy_start)]
    begin, end, event = busy_end[:-1], busy_start[1:], following[1:]
    steps = work.trace.steps
    # Without a launch in the file nothing says whether the device waited before its first event.
    if not steps or not len(busy_start) or not work.linked.any():
        return begin, end, event
    first, last = steps[0][1], max(stop for _, _, stop in steps)
    leading = _usual_wait(work, int(busy_start[0] - first), CoveredTime(begin, end))
    if leading > 0:
        begin = np.append(busy_start[0] - leading, begin)
        end, event = np.append(busy_start[0], end), np.append(following[0], event)
    if last > busy_end[-1]:
        begin, end, event = np.append(begin, busy_end[-1]), np.append(end, last), np.append(event, NONE)
    return begin, end, event


def _usual_wait(work: Work, length_ns: int, waiting: CoveredTime) -> int:
    """Return an estimate of the ns that the device waited before the first event of the recording.

    `length_ns` is the time from the start of the first step to that event. In this time the device may have been busy
    with work of an earlier step that was not recorded. So the result is the median wait at the start of the other
    steps, but at most `length_ns`; with a single step it is `length_ns`. `waiting` is the time between events in which
    the device ran nothing.
    """
    begins = np.array([start for _, start, _ in work.trace.steps[1:]], np.int64)
    launched = np.sort(work.launch_start[work.linked], kind="stable")  # fast where nearly in order
    following = np.append(launched, begins[-1:])[np.searchsorted(launched, begins)] if len(begins) else begins
    usual = waiting.between(begins, np.maximum(begins, following)) if len(begins) else np.array([length_ns])
    return min(length_ns, int(np.median(usual)))


@dataclass(frozen=True)
class Host:
    """The activity of a host's threads while a device waits for the host."""

    trace: Trace

    @cached_property
    def main(self) -> int:
        """The lane number of the thread of the training loop; NONE if it is not known.

        It is the thread with step marks, else the one with the most launching calls.
        """
        c = self.trace.columns
        marks = self.trace.rows_named(self.trace.text_matches(PROFILER_STEP), ANNOTATIONS)
        # The timeline of the device has marks of steps, too.
        marks = marks[self.trace.lane_is(HOST_LANE)[c["lane"][marks]]]
        rows = marks if len(marks) else np.flatnonzero(self.trace.category_matches(LAUNCHES))
        return int(np.bincount(c["lane"][rows]).argmax()) if len(rows) else NONE

    @cached_property
    def rows_by_kind(self) -> dict[OpportunityKind, Integers]:
        """{cause of waiting: trace rows of the events that show this cause, such as the calls of the data loader}."""
        trace = self.trace
        return {
            OpportunityKind.DATA_LOADER: trace.rows_named(
                trace.text_matches(_LOADER) | names_in_phases(trace, ["data"]), ANNOTATIONS
            ),
            OpportunityKind.ALLOCATION: trace.rows_named(trace.text_matches(DRIVER_MEMORY), LAUNCHES),
            OpportunityKind.COMPILATION: trace.rows_named(trace.text_matches(_COMPILING), ANNOTATIONS),
            OpportunityKind.PYTHON: trace.rows_named(names_in_phases(trace, _OWN_WORK), ANNOTATIONS),
            OpportunityKind.BUFFER_BROADCAST: self.inside(
                trace.rows_named(trace.text_matches(BROADCAST), OPS),
                trace.rows_named(trace.text_matches(_DDP_FORWARD), ANNOTATIONS),
            ),
        }

    def busy(self, kind: OpportunityKind, lanes: Sequence[int]) -> Intervals:
        """Return the intervals in which the host is busy with a cause; nested events of later causes are left out.

        Example: a data loader waits 571 ms, and the garbage collector runs inside it for 536 ms. The loader is busy for
        35 ms.
        """
        rows, kinds = self.rows_by_kind[kind], list(self.rows_by_kind)
        later = [self.rows_by_kind[other] for other in kinds[kinds.index(kind) + 1 :]]
        nested = self.inside(np.concatenate([rows[:0], *later]), rows)
        whole = self.intervals(rows, lanes)
        return subtract(whole, self.intervals(nested, lanes)) if len(nested) else whole

    def inside(self, rows: Integers, outer: Integers) -> Integers:
        """Return the trace rows in `rows` whose events are nested inside an event of the rows `outer`."""
        parent, encloses = self.trace.columns["parent"], np.zeros(len(self.trace.columns["parent"]), bool)
        encloses[outer] = True
        nested, above = np.zeros(len(rows), bool), parent[rows]
        while len(outer) and (known := above >= 0).any():
            nested |= known & encloses[above]
            above = np.where(known, parent[above], NONE)
        return rows[nested]

    @cached_property
    def synchronising(self) -> Integers:
        operators = self.trace.rows_named(self.trace.text_matches(_SYNCHRONISING), OPS)
        return np.union1d(waiting_calls(self.trace), operators)

    def intervals(self, rows: Integers, lanes: Sequence[int]) -> Intervals:
        c = self.trace.columns
        rows = rows[np.isin(c["lane"][rows], lanes)]
        return merge(c["start"][rows], c["end"][rows])

    def lasting(self, waiting: Intervals) -> tuple[Integers, Integers]:
        """Return the host's events that overlap the intervals `waiting` and take longer than launching a kernel can.

        The result is (trace rows of runtime calls, trace rows of operators). Events that wait for the device, and
        events that enclose others, are left out.
        """
        c, rows = self.trace.columns, self.innermost
        long = rows[c["end"][rows] - c["start"][rows] > _LAUNCH_AT_MOST_NS]
        long = covered_rows(self.trace, long[~np.isin(long, self.synchronising)], waiting)[0]
        calls = self.trace.category_matches(LAUNCHES)[long]
        return long[calls], long[~calls]

    @cached_property
    def innermost(self) -> Integers:
        """The trace rows of the operators and runtime calls that enclose no other operator or runtime call."""
        c = self.trace.columns
        holds = np.zeros(len(c["start"]), bool)
        parents = c["parent"][self.working]
        holds[parents[parents >= 0]] = True
        return self.working[~holds[self.working]]

    @cached_property
    def working(self) -> Integers:
        operates = self.trace.category_matches(OPS) & ~self.trace.name_matches(PROFILER_STEP)
        return np.flatnonzero(operates | self.trace.category_matches(LAUNCHES))


@dataclass(frozen=True)
class Cause:
    """One reason why a device waited for the host, such as the data loader, with the time and number of these waits.

    `intervals` are the intervals (ns of the trace's clock) in which the device waited for this reason.
    """

    kind: OpportunityKind
    waiting_ns: int
    count: int
    intervals: Intervals


def causes(work: Work, host: Host) -> list[Cause]:
    """Return each reason why a device waited for its host, with the time and number of these waits.

    If the host itself does the work, only reasons with an annotation are returned, such as data loading.
    """
    gaps = _gaps_of(work)
    found: dict[OpportunityKind, list[Cause]] = {}
    for lane in np.unique(gaps.launched_by).tolist():
        lanes = [number for number in {lane, host.main} if number != NONE]
        for cause in _causes_on(gaps.select(gaps.launched_by == lane), host, lanes, work.device is not None):
            found.setdefault(cause.kind, []).append(cause)
    return [joined(parts) for parts in found.values()]


def joined(parts: Sequence[Cause]) -> Cause:
    start, end = (np.concatenate([part.intervals[side] for part in parts]) for side in (0, 1))
    waiting, count = sum(part.waiting_ns for part in parts), sum(part.count for part in parts)
    return Cause(parts[0].kind, waiting, count, merge(start, end))


def _causes_on(gaps: Gaps, host: Host, lanes: Sequence[int], on_device: bool) -> Iterator[Cause]:
    """Yield the causes of the gaps in a device's work that end with a launch by one thread; each ns has one cause.

    `lanes` are the lane numbers of the launching thread and of the thread of the training loop. If the host itself does
    the work (`on_device` is false), only causes with an annotation are found.
    """
    left: Intervals = merge(gaps.start, gaps.end)
    # In this order: what an event names goes before what its length alone suggests.
    for kind in host.rows_by_kind:
        busy = host.busy(kind, lanes)
        mine = intersect(left, busy)
        left = subtract(left, busy)
        if on_device:
            more = further(kind, left, host, lanes)
            mine, left = union(mine, more), subtract(left, more)
        if len(mine[0]):
            yield cause_of(kind, mine)
    if on_device and len(left[0]):
        yield from _caught_up(left, gaps, host.intervals(host.synchronising, lanes))


def further(kind: OpportunityKind, left: Intervals, host: Host, lanes: Sequence[int]) -> Intervals:
    """Return the part of the intervals `left` that has the cause `kind` although no annotation shows it.

    A long call of the runtime means compilation. A long operator, or a long time without any operator, means Python.
    `left` are the intervals without a cause so far; `lanes` are the lane numbers of the threads to search.
    """
    nothing = left[0][:0], left[1][:0]
    long = _longer_than(left, _LAUNCH_AT_MOST_NS)
    calls, operators = host.lasting(long) if len(long[0]) else nothing
    if kind is OpportunityKind.COMPILATION:
        return intersect(left, host.intervals(calls, lanes)) if len(calls) else nothing
    if kind is OpportunityKind.PYTHON:
        silent = _longer_than(left, _STRETCH_NS)
        if len(silent[0]):
            silent = _longer_than(subtract(silent, host.intervals(host.working, lanes)), _STRETCH_NS)
        return union(silent, intersect(left, host.intervals(operators, lanes))) if len(operators) else silent
    return nothing


def cause_of(kind: OpportunityKind, intervals: Intervals) -> Cause:
    return Cause(kind, int((intervals[1] - intervals[0]).sum()), len(intervals[0]), intervals)


def _longer_than(intervals: Intervals, least_ns: int) -> Intervals:
    start, end = intervals
    lasting = end - start > least_ns
    return start[lasting], end[lasting]


def _caught_up(left: Intervals, gaps: Gaps, synchronising: Intervals) -> Iterator[Cause]:
    """Yield the causes of the gaps that nothing else explains: calls that waited for the device, and slow launching.

    `left` are the unexplained intervals in `gaps`, `synchronising` the intervals of calls that wait for the device.
    After such a call the device is idle until the host has launched new work, so this time counts for the call.
    """
    waited, remaining = CoveredTime(*synchronising), CoveredTime(*left)
    # A call that waited ends in the gap; it began while the device still worked.
    index = np.searchsorted(synchronising[1], gaps.start)
    known = index < len(synchronising[0])
    began = np.append(synchronising[0], 0)[np.where(known, index, -1)]
    within = known & (began < gaps.end) & (np.append(synchronising[1], 0)[np.where(known, index, -1)] <= gaps.end)
    lost = remaining.between(gaps.start, gaps.end)
    length = waited.between(np.minimum(began, gaps.start), gaps.end)
    ramp = np.where(within, np.minimum(np.minimum(lost, RAMP_NS), length), 0)
    for kind, share in ((OpportunityKind.SYNCHRONISING_CALL, ramp), (OpportunityKind.LAUNCH, lost - ramp)):
        mine = share > 0
        if mine.any():
            spans = gaps.start[mine], gaps.end[mine]
            yield Cause(kind, int(share.sum()), int(mine.sum()), spans)


def covered_rows(trace: Trace, rows: Integers, intervals: Intervals) -> tuple[Integers, Column]:
    c = trace.columns
    inside = CoveredTime(*intervals).between(c["start"][rows], c["end"][rows])
    return rows[inside > 0], inside[inside > 0]


# Find out when a device waits for its host: in few of the steps, or after a call that emptied the launch queue.
#
# Example: in each step the host reads the loss with `.item()`, and then needs 3 ms for other work. At the end of
# `.item()` all launched kernels have ended, so the device has nothing to do for 3 ms. Without the call the host would
# have launched kernels ahead, and its other work would cost nothing.

STEPS_AT_LEAST, FEW, _NEARLY_ALL = 4, 0.25, 0.9
"""A wait is one of few steps if these are at most a quarter of at least four, and have nine tenths of its time."""
_MOST = 0.5
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
    if (end - start)[follows].sum() < _MOST * (end - start).sum():
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
