"""Summarise kernels by name, and find sequences of kernels that repeat: candidates for fusion or CUDA graphs."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
import numpy as np

from analyzers.columns import Column, Floats, Integers
from analyzers.traces.columns import KIND_NAMES, NONE, CoveredTime, Work, nest
from analyzers.traces.costs import Attribution
from analyzers.traces.model import CompiledCode, CompiledFrame, Kernel, KernelSequence
from analyzers.traces.reading.numbering import combined_codes, first_rows
from analyzers.traces.reading.trace import ANNOTATIONS, Trace

MEASURES = ("occupancy", "warps_per_sm", "blocks_per_sm")
_MEASURE_AT_MOST = 1e9
# What recorders of different ages call the resources, in one spelling.
LIMITS = {"regs": "registers", "smem": "shared memory", "shared mem": "shared memory", "sharedmem": "shared memory"}
_LIMIT_TEXT_AT_MOST = 100
Occupancy = dict[str, float | str | None]
"""The fields of `Kernel` about occupancy, by name."""


class Occupancies:
    """The recorded occupancy of each event of a device (NaN: not recorded), and the resources that limit it."""

    def __init__(self, work: Work) -> None:
        """Decode each distinct occupancy text once; index 0 of `limits` and `measures` is for events without one."""
        c = work.trace.columns
        texts = c.meta["occupancies"]
        self.limits = ["", *(limits(text) for text in texts)]
        self.measures: Floats = np.array([[np.nan] * len(MEASURES), *(measures(text) for text in texts)])
        of_row = np.zeros(len(c["start"]), np.int32)
        of_row[c["occupancy_row"]] = c["occupancy_text"] + np.int32(1)
        self.text_index: Column = of_row[work.rows]
        self.duration: Column = work.end - work.start

    def mean(self, indices: Column) -> Occupancy:
        """Return the fields of `Kernel` on occupancy: means over some events, weighted by duration, and `limited_by`.

        `indices` are the indices of the events in `work`. `limited_by` has the limiting resources of the event with the
        longest duration. The result is empty if the trace has no occupancies.
        """
        if len(self.measures) == 1:
            return {}
        longest = self.text_index[indices[self.duration[indices].argmax()]]
        means: Occupancy = {name: self.weighted_mean(i, indices) for i, name in enumerate(MEASURES)}
        return means | {"limited_by": self.limits[longest]}

    def weighted_mean(self, measure: int, indices: Column) -> float | None:
        values, duration = self.measures[self.text_index[indices], measure], self.duration[indices]
        known = np.isfinite(values)
        if not known.any():
            return None
        # Kernels of 0 ns, as memory sets may be, count equally.
        weights = duration[known] if duration[known].any() else None
        return round(float(np.average(values[known], weights=weights)), 6)


def parts_of(text: str) -> list[str]:
    """Split the recorded occupancy text of a kernel into its four parts, which are separated by zero bytes.

    The parts are the occupancy, warps and blocks per multiprocessor (`MEASURES`), and the limiting resources.
    """
    return f"{text}\0\0\0".split("\0")[: len(MEASURES) + 1]


def measures(text: str) -> list[float]:
    """Return the recorded `MEASURES` of a kernel; NaN for each that is not known.

    Kineto writes an occupancy of 0 for kernels of which it cannot compute one, such as those with much dynamic shared
    memory. A whole warp on each multiprocessor shows that it is not 0.
    """
    occupancy, warps, blocks = (number(part) for part in parts_of(text)[: len(MEASURES)])
    return [float("nan") if occupancy == 0 and warps >= 1 else occupancy, warps, blocks]


def number(text: str) -> float:
    """Return the number in a JSON text, also if the number is quoted as a string; NaN for any other text."""
    with suppress(msgspec.DecodeError, TypeError, ValueError, OverflowError):
        value = float(msgspec.json.decode(text))
        if 0 <= value < _MEASURE_AT_MOST:
            return value
    return float("nan")


def limits(text: str) -> str:
    """Return the resources that limit a kernel's occupancy, such as `registers, warps`; empty if not recorded.

    `text` is the recorded occupancy text of the kernel; its last part is, for example, `{"limitingFactors":
    "REGS|WARPS"}`.
    """
    with suppress(msgspec.DecodeError):
        recorded = msgspec.json.decode(parts_of(text)[-1])
        factors = recorded.get("limitingFactors") if isinstance(recorded, dict) else None
        if isinstance(factors, str):
            words = (word.strip().lower().replace("_", " ") for word in factors[:_LIMIT_TEXT_AT_MOST].split("|"))
            return ", ".join(LIMITS.get(word, word) for word in words)
    return ""


# For each length of a run of kernels, the lengths of the two parts that it consists of: two runs are equal if both
# parts are.
_SHORTER_RUNS = {2: (1, 1), 3: (2, 1), 5: (3, 2), 8: (5, 3)}
_LENGTHS = (8, 5, 3)
_SEQUENCES_AT_MOST = 5
_TIMES_AT_LEAST = 3


def kernels(attribution: Attribution) -> list[Kernel]:
    """Return a `Kernel` for each kernel name, with statistics over all its executions, the most total time first.

    If no device worked, each item is an operator instead; its time leaves out the operators that it calls.
    """
    work = attribution.work
    if not len(work.rows):
        return []
    name, spent, occupancies = work.trace.columns["name"][work.rows], work.own, Occupancies(work)
    sources = {what: attribution.sources(what) for what in ("operator", "module", "line")}
    order = np.lexsort((spent, name))
    bounds = np.flatnonzero(np.diff(name.take(order), prepend=NONE, append=NONE))
    rows = []
    for begin, times in zip(bounds[:-1].tolist(), np.diff(bounds).tolist(), strict=True):
        number, kind = int(name[order[begin]]), KIND_NAMES[work.kind[order[begin]]]
        same = order[begin : begin + times]
        statistics = _kernel_statistics(work.trace.names[number], kind, spent[same])
        due_to = {what: names.get(number, "").removeprefix("nn.Module: ") for what, names in sources.items()}
        rows.append(msgspec.structs.replace(statistics, **due_to, **occupancies.mean(same)))
    return sorted(rows, key=lambda kernel: (-kernel.total_ns, kernel.name))


def _kernel_statistics(name: str, kind: str, spent: Column) -> Kernel:
    """Return the statistics of the kernel `name`; `spent` holds its durations in ns, ascending.

    `kind` is the kind of its work, such as `compute`.
    """
    count, total = len(spent), int(spent.sum())
    return Kernel(
        name=name,
        kind=kind,
        count=count,
        total_ns=total,
        mean_ns=round(total / count),
        median_ns=int(spent[(count - 1) // 2] + spent[count // 2]) // 2,
        std_ns=round(float(spent.std())),
        min_ns=int(spent[0]),
        max_ns=int(spent[-1]),
    )


def sequences(work: Work) -> list[KernelSequence]:
    """Return sequences of 3, 5 or 8 kernels that occur at least three times on one stream, the costliest first.

    Occurrences do not overlap. If one sequence is part of another, only the longer one is listed. Example: a stream
    that runs a b c a b c a b c has one sequence, (a, b, c), three times; (b, c, a) is the same sequence shifted.
    """
    if work.device is None or not len(work.rows):
        return []
    c, repeated = work.trace.columns, list[KernelSequence]()
    order = np.lexsort((work.start, c["lane"][work.rows]))
    name, lane, spent = (column[order] for column in (c["name"][work.rows], c["lane"][work.rows], work.own))
    ends, runs = np.concatenate([[0], np.cumsum(spent)]), _numbered_runs(name)
    for length in _LENGTHS:
        # A run may not reach from one stream into the next.
        run = np.where(lane[: len(runs[length])] == lane[length - 1 :], runs[length], NONE)
        for begins in _frequent_runs(run, length):
            total = int((ends[begins + length] - ends[begins]).sum())
            names = [work.trace.names[i] for i in name[begins[0] :][:length].tolist()]
            sequence = KernelSequence(names=names, count=len(begins), total_ns=total)
            repeated += [] if _is_contained(sequence, repeated) else [sequence]
    return sorted(repeated, key=lambda sequence: -sequence.total_ns)[:_SEQUENCES_AT_MOST]


def _numbered_runs(name: Column) -> dict[int, Column]:
    """Return, for lengths 3, 5 and 8, a number for the sequence of kernels that begins at each index of `name`.

    The result is {length: numbers}. Sequences of equal kernel names have equal numbers. `name` has the index of each
    kernel's name, in the order of the stream. Longer sequences are numbered by the pair of numbers of two shorter ones:
    the 5 kernels from index i by the numbers of the 3 kernels from i and of the 2 kernels from i + 3.
    """
    runs = {1: name}
    for length, (head, tail) in _SHORTER_RUNS.items():
        size = max(0, len(name) - length + 1)
        runs[length] = combined_codes(runs[head][:size], runs[tail][head:][:size])
    return runs


def _frequent_runs(run: Column, length: int) -> Iterator[Integers]:
    """Yield, for each of the most frequent sequences of kernels, the indices at which it begins.

    `run` has the number of the sequence that begins at each index, `length` is the number of kernels in a sequence. If
    occurrences of a sequence overlap, only the first one counts; a sequence that is then too rare is left out.
    """
    count = np.bincount(run[run != NONE])
    # More candidates than are listed, as many of them are shifts of another.
    candidates = np.lexsort((first_rows(run[run != NONE]), -count))[: 4 * _SEQUENCES_AT_MOST]
    for number in candidates[count[candidates] >= _TIMES_AT_LEAST].tolist():
        begins = _not_overlapping(np.flatnonzero(run == number), length)
        if len(begins) >= _TIMES_AT_LEAST:
            yield begins


def _not_overlapping(indices: Integers, length: int) -> Integers:
    """Return the ascending `indices` without those that are less than `length` after the last one kept.

    [0, 1, 2, 3, 7] with length 3 gives [0, 3, 7].
    """
    end = len(indices)
    following = np.append(np.searchsorted(indices, indices + length), end)
    taken = np.zeros(1, np.int64)
    # Each round doubles how many are taken: `following` then leads as many takings further.
    while taken[-1] != end:
        taken, following = np.append(taken, following[taken]), following[following]
    return np.asarray(indices[taken[taken != end]])


def _is_contained(sequence: KernelSequence, others: list[KernelSequence]) -> bool:
    """Return whether a sequence of kernels adds nothing to one of `others`.

    A sequence adds nothing if another one contains all of its kernel names and occurs at least half as often. The
    sequence is then a part of the other one, or the same repetition begun at another kernel: in a stream that repeats
    a, b and c, (b, c, a) adds nothing to (a, b, c).
    """
    names = set(sequence.names)
    return any(names <= set(other.names) and sequence.count <= 2 * other.count for other in others)


# Find what torch.compile did in a trace: graphs that ran, graph breaks, and compilations during the recording.
#
# A call of compiled code is recorded as an event `Torch-Compiled Region: frame/version`, here called a *region*. A
# *frame* is a compiled Python function. After a graph break, the rest of the function becomes a frame of its own,
# called by the first frame. So a region inside another region means a graph break.
#
# Example: `forward` prints in the middle. Region 0/0 runs its first half; inside it, after the print, region 1/0 runs
# the second half, a function that Dynamo names `torch_dynamo_resume_in_forward_at_12`. That is one break, at line 12.

_REGION = re.compile(r"^Torch-Compiled Region(?:: (.+)/(\d+))?")
_GRAPH = re.compile(r"^CompiledFunction$|^## Call CompiledFxGraph|^Pregraph bytecode$")
_LOOKUP = re.compile(r"^TorchDynamo Cache Lookup$")
# The outermost events of compiling a forward, or a backward when it first runs; a hundred others are inside.
COMPILATION = re.compile(r"^dynamo$|compile_inner\b|^entire_(frame|backward)_compile|\bbw_compiler\b")
BACKWARD = re.compile(r"backward|\bbw_")
_RESUMED = re.compile(r"^(.+)\(\d+\): torch_dynamo_resume_in_(.+)_at_(\d+)$")
FRAMES_AT_MOST = 50


@dataclass(frozen=True)
class Regions:
    """The calls of compiled code (regions) in a trace, in order of time; arrays have an entry for each region."""

    trace: Trace

    @cached_property
    def rows(self) -> Integers:
        rows = annotated(self.trace, _REGION)
        return rows[np.argsort(self.trace.columns["start"][rows], kind="stable")]

    @property
    def start(self) -> Column:
        return self.trace.columns["start"][self.rows]

    @property
    def lane(self) -> Column:
        return self.trace.columns["lane"][self.rows]

    @cached_property
    def outer(self) -> Column:
        return _enclosing_rows(self.trace, self.rows)

    @cached_property
    def frames(self) -> list[tuple[str, int]]:
        """For each region, the (frame, version) in its name; ("", 0) if an older recorder wrote neither."""
        names = self.trace.columns["name"][self.rows].tolist()
        matches = {name: _REGION.match(self.trace.names[name]) for name in set(names)}
        return [((match[1] or ""), int(match[2] or 0)) if (match := matches[name]) else ("", 0) for name in names]

    @cached_property
    def functions(self) -> dict[int, str]:
        """{trace row of a region: name of the first Python function called in it}.

        The dictionary is empty unless Python stacks were recorded.
        """
        c = self.trace.columns
        called = np.flatnonzero(self.trace.category_matches({"python_function"}))
        first = _nearest_moment((c["lane"][called], c["start"][called]), (self.lane, self.start), after=True)
        pairs = [(row, called[i]) for row, i in zip(self.rows.tolist(), first.tolist(), strict=True) if i != NONE]
        return {row: self.trace.names[c["name"][call]] for row, call in pairs if c["end"][call] <= c["end"][row]}

    @cached_property
    def between(self) -> Column:
        """For each region that continues after a graph break, the host's time (ns) from the break to the region.

        Compilations in this time do not count. The value is 0 for regions that do not continue after a break.
        """
        c, broken, compiling = self.trace.columns, self.outer != NONE, compilations(self.trace)
        ended = np.concatenate([annotated(self.trace, _GRAPH), self.rows])
        before = _nearest_moment((c["lane"][ended], c["end"][ended]), (self.lane, self.start), after=False)
        since = np.where(before != NONE, c["end"][ended[before]], self.start)
        # What ended before the outer region began has nothing to do with this break.
        since = np.maximum(since, np.where(broken, c["start"][self.outer], since))
        compile_ns = CoveredTime(c["start"][compiling], c["end"][compiling]).between(since, self.start)
        return np.where(broken, self.start - since - compile_ns, 0)


def annotated(trace: Trace, pattern: re.Pattern[str]) -> Integers:
    return trace.rows_named(trace.text_matches(pattern), ANNOTATIONS)


def _enclosing_rows(trace: Trace, rows: Column) -> Integers:
    """Return, for each of the trace rows `rows`, the innermost other row of `rows` whose event encloses it, or NONE."""
    # The parents of the trace will not do: annotations may begin inside one Python function and end in another.
    lane, start, end = (trace.columns[name][rows] for name in ("lane", "start", "end"))
    _, parent = nest(lane, start, end)
    return np.where(parent >= 0, rows[parent], NONE)


def _nearest_moment(known: tuple[Column, Column], asked: tuple[Column, Column], *, after: bool) -> Integers:
    """Return, for each time in `asked`, the index in `known` of the first time at or after it, or NONE.

    Both arguments are (lanes, times in ns); only times in the same lane (thread or stream) are compared. With
    `after=False` the result is the index of the last known time at or before the asked time.
    """
    nearest = np.full(len(asked[0]), NONE)
    for lane in np.unique(asked[0]).tolist():
        mine, there = asked[0] == lane, np.flatnonzero(known[0] == lane)
        there = there[np.argsort(known[1][there], kind="stable")]
        side: Literal["left", "right"] = "left" if after else "right"
        index = np.searchsorted(known[1][there], asked[1][mine], side=side) - (not after)
        # Index -1 and the one behind the last known moment both lead to the NONE that is appended.
        nearest[mine] = np.append(there, NONE)[index]
    return nearest


def compilations(trace: Trace) -> Integers:
    """Return the trace rows of compilations by torch.compile in order of time; nested compilations are left out."""
    rows = annotated(trace, COMPILATION)
    outermost = rows[_enclosing_rows(trace, rows) == NONE]
    return np.asarray(outermost[np.argsort(trace.columns["start"][outermost], kind="stable")])


def compiled_code(trace: Trace) -> CompiledCode | None:
    """Return what torch.compile did during the recording; None if no compiled code ran and nothing was compiled."""
    regions, compiling = Regions(trace), compilations(trace)
    if not len(regions.rows) and not len(compiling):
        return None
    c, lookups = trace.columns, annotated(trace, _LOOKUP)
    known, broken = set(regions.frames), regions.outer != NONE
    return CompiledCode(
        regions=len(known),
        recompiled=sum(version > 0 for _, version in known),
        compilations=len(compiling),
        compile_ns=int((c["end"][compiling] - c["start"][compiling]).sum()),
        calls=len(regions.rows),
        breaks=int(broken.sum()),
        between_ns=int(regions.between.sum()),
        lookups=len(lookups),
        lookup_ns=int((c["end"][lookups] - c["start"][lookups]).sum()),
        frames=_compiled_frames(regions, compiling),
    )


def _compiled_frames(regions: Regions, compiling: Integers) -> list[CompiledFrame]:
    """Return each compiled frame with its calls, graph breaks and compilations, the costliest frame first.

    `compiling` has the trace rows of all compilations. The cost of a frame is the time of its compilations plus the
    host's time after its graph breaks.
    """
    numbers = {frame: i for i, frame in enumerate(dict.fromkeys(frame for frame, _ in regions.frames))}
    which = np.array([numbers[frame] for frame, _ in regions.frames], np.int64)
    spent, times = _compile_times(regions, compiling, which, len(numbers))
    rows = []
    for frame, number in numbers.items():
        mine = which == number
        function, line = _function_and_break(
            next(filter(None, map(regions.functions.get, regions.rows[mine].tolist())), "")
        )
        rows.append(
            CompiledFrame(
                frame=frame,
                function=function,
                broken_at=line,
                versions=1 + max(version for name, version in regions.frames if name == frame),
                calls=int(mine.sum()),
                breaks=int((regions.outer[mine] != NONE).sum()),
                between_ns=int(regions.between[mine].sum()),
                compilations=int(times[number]),
                compile_ns=int(spent[number]),
            )
        )
    return sorted(rows, key=lambda frame: -(frame.between_ns + frame.compile_ns))[:FRAMES_AT_MOST]


def _compile_times(regions: Regions, compiling: Integers, which: Integers, size: int) -> tuple[Integers, Integers]:
    """Return two arrays with an entry for each of `size` frames: the time (ns) and the number of its compilations.

    `compiling` has the trace rows of all compilations; backward passes are left out. `which` has, for each region, the
    number of its frame. The recorder does not say which frame was compiled: it is taken to be the frame that runs next
    in the same thread.
    """
    c, spent, times = regions.trace.columns, np.zeros(size, np.int64), np.zeros(size, np.int64)
    forward = compiling[~regions.trace.name_matches(BACKWARD)[compiling]]
    # The events of compiling do not name their frame, but a frame that was compiled runs right after it.
    region = _nearest_moment((regions.lane, regions.start), (c["lane"][forward], c["end"][forward]), after=True)
    known = region != NONE
    np.add.at(spent, which[region[known]], (c["end"][forward] - c["start"][forward])[known])
    np.add.at(times, which[region[known]], 1)
    return spent, times


def _function_and_break(name: str) -> tuple[str, str]:
    """Split the name of a Python function into (function, line of the graph break after which it continues).

    The line is `file:line`; it is empty for a function that does not continue after a graph break.
    """
    match = _RESUMED.match(name)
    return (f"{match[1]}: {match[2]}", f"{match[1]}:{match[3]}") if match else (name, "")
