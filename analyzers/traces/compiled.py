"""Find what torch.compile did in a trace: graphs that ran, graph breaks, and compilations during the recording.

A call of compiled code is recorded as an event `Torch-Compiled Region: frame/version`, here called a *region*. A
*frame* is a compiled Python function. After a graph break, the rest of the function becomes a frame of its own, called
by the first frame. So a region inside another region means a graph break.

Example: `forward` prints in the middle. Region 0/0 runs its first half; inside it, after the print, region 1/0 runs the
second half, a function that Dynamo names `torch_dynamo_resume_in_forward_at_12`. That is one break, at line 12.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.columns import NONE, CoveredTime, nest
from analyzers.traces.model import CompiledCode, CompiledFrame
from analyzers.traces.reading.trace import ANNOTATIONS, Trace

_REGION = re.compile(r"^Torch-Compiled Region(?:: (.+)/(\d+))?")
GRAPH = re.compile(r"^CompiledFunction$|^## Call CompiledFxGraph|^Pregraph bytecode$")
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
        ended = np.concatenate([annotated(self.trace, GRAPH), self.rows])
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
