"""What torch.compile left in a trace: the graphs that ran, where they were broken, and what was compiled meanwhile.

A call of compiled code is a `Torch-Compiled Region: frame/version`. Where its graph was broken, what is left of the
function is a frame of its own, which the first one calls: so a region inside another one is a break.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.intervals import CoveredTime
from analyzers.traces.columns.nesting import NONE, nest
from analyzers.traces.model import ANNOTATIONS, Trace
from analyzers.traces.structs import CompiledCode, CompiledFrame

REGION = re.compile(r"^Torch-Compiled Region(?:: (.+)/(\d+))?")
GRAPH = re.compile(r"^CompiledFunction$|^## Call CompiledFxGraph|^Pregraph bytecode$")
LOOKUP = re.compile(r"^TorchDynamo Cache Lookup$")
COMPILATION = re.compile(r"^dynamo$|compile_inner\b|^entire_(frame|backward)_compile|\bbw_compiler\b")
"""Of a forward, or of a backward that is compiled when it first runs; they contain a hundred others."""
BACKWARD = re.compile(r"backward|\bbw_")
RESUMED = re.compile(r"^(.+)\(\d+\): torch_dynamo_resume_in_(.+)_at_(\d+)$")
FRAMES_AT_MOST = 50


@dataclass(frozen=True)
class Regions:
    """The calls of compiled code in order of time, as rows of the trace."""

    trace: Trace

    @cached_property
    def rows(self) -> Column:
        found = marked(self.trace, REGION)
        return found[np.argsort(self.trace.columns["start"][found], kind="stable")]

    @property
    def start(self) -> Column:
        return self.trace.columns["start"][self.rows]

    @property
    def lane(self) -> Column:
        return self.trace.columns["lane"][self.rows]

    @cached_property
    def outer(self) -> Column:
        """The row of the region around each, NONE for those that the user's own code calls."""
        return around(self.trace, self.rows)

    @cached_property
    def frames(self) -> list[tuple[str, int]]:
        """(frame, version) of each; old recorders tell neither."""
        names = self.trace.columns["name"][self.rows].tolist()
        told = {name: REGION.match(self.trace.names[name]) for name in set(names)}
        return [((found[1] or ""), int(found[2] or 0)) if (found := told[name]) else ("", 0) for name in names]

    @cached_property
    def functions(self) -> dict[int, str]:
        """The Python function that each region (a row) runs, where stacks were recorded: the first one inside."""
        c = self.trace.columns
        called = np.flatnonzero(self.trace.category_matches({"python_function"}))
        first = neighbour((c["lane"][called], c["start"][called]), (self.lane, self.start), behind=True)
        pairs = [(row, called[i]) for row, i in zip(self.rows.tolist(), first.tolist(), strict=True) if i != NONE]
        return {row: self.trace.names[c["name"][one]] for row, one in pairs if c["end"][one] <= c["end"][row]}

    @cached_property
    def between(self) -> Column:
        """The host's ns from leaving a graph to the region that goes on behind the break, without compiling."""
        c, broken, made = self.trace.columns, self.outer != NONE, compilations(self.trace)
        left = np.concatenate([marked(self.trace, GRAPH), self.rows])
        before = neighbour((c["lane"][left], c["end"][left]), (self.lane, self.start), behind=False)
        since = np.where(before != NONE, c["end"][left[before]], self.start)
        since = np.maximum(since, np.where(broken, c["start"][self.outer], since))
        compiling = CoveredTime(c["start"][made], c["end"][made]).between(since, self.start)
        return np.where(broken, self.start - since - compiling, 0)


def marked(trace: Trace, pattern: re.Pattern[str]) -> Column:
    """The rows of what torch.compile marks so; functions on the stack may be called alike."""
    return np.flatnonzero(trace.name_matches(pattern) & trace.category_matches(ANNOTATIONS))


def around(trace: Trace, rows: Column) -> Column:
    """The innermost other one of some events around each of them, NONE where there is none.

    Only these are looked at: what else a stack has may begin in one function and end in another.
    """
    lane, start, end = (trace.columns[name][rows] for name in ("lane", "start", "end"))
    _, parent = nest(lane, start, end)
    return np.where(parent >= 0, rows[parent], NONE)


def neighbour(known: tuple[Column, Column], asked: tuple[Column, Column], *, behind: bool) -> Column:
    """The place of the known (lane, moment) next behind or before each asked one in its lane; NONE where none is."""
    found = np.full(len(asked[0]), NONE)
    for lane in np.unique(asked[0]).tolist():
        mine, there = asked[0] == lane, np.flatnonzero(known[0] == lane)
        there = there[np.argsort(known[1][there], kind="stable")]
        side: Literal["left", "right"] = "left" if behind else "right"
        place = np.searchsorted(known[1][there], asked[1][mine], side=side) - (not behind)
        found[mine] = np.append(there, NONE)[place]  # places -1 and behind the last one are both NONE
    return found


def compilations(trace: Trace) -> Column:
    """The rows of compilations, none inside another, in order of time."""
    rows = marked(trace, COMPILATION)
    found: Column = rows[around(trace, rows) == NONE]
    return found[np.argsort(trace.columns["start"][found], kind="stable")]


def compiled(trace: Trace) -> CompiledCode | None:
    """Compiled code that ran, and compilations during the recording; None without any of these."""
    regions, made = Regions(trace), compilations(trace)
    if not len(regions.rows) and not len(made):
        return None
    c, lookups = trace.columns, marked(trace, LOOKUP)
    known, broken = set(regions.frames), regions.outer != NONE
    return CompiledCode(
        regions=len(known),
        recompiled=sum(version > 0 for _, version in known),
        compilations=len(made),
        compile_ns=int((c["end"][made] - c["start"][made]).sum()),
        calls=len(regions.rows),
        breaks=int(broken.sum()),
        between_ns=int(regions.between.sum()),
        lookups=len(lookups),
        lookup_ns=int((c["end"][lookups] - c["start"][lookups]).sum()),
        frames=frames(regions, made),
    )


def frames(regions: Regions, made: Column) -> list[CompiledFrame]:
    """Each frame with its calls, breaks and compilations; those that cost most first."""
    numbers = {frame: i for i, frame in enumerate(dict.fromkeys(frame for frame, _ in regions.frames))}
    which = np.array([numbers[frame] for frame, _ in regions.frames], np.int64)
    spent, times = of_frames(regions, made, which, len(numbers))
    found = []
    for frame, number in numbers.items():
        mine = which == number
        function, line = place(next(filter(None, map(regions.functions.get, regions.rows[mine].tolist())), ""))
        found.append(
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
    return sorted(found, key=lambda one: -(one.between_ns + one.compile_ns))[:FRAMES_AT_MOST]


def of_frames(regions: Regions, made: Column, which: Column, size: int) -> tuple[Column, Column]:
    """(ns, number) of the compilations of each frame: a frame that was compiled runs right behind."""
    c, spent, times = regions.trace.columns, np.zeros(size, np.int64), np.zeros(size, np.int64)
    forward = made[~regions.trace.name_matches(BACKWARD)[made]]
    region = neighbour((regions.lane, regions.start), (c["lane"][forward], c["end"][forward]), behind=True)
    known = region != NONE
    np.add.at(spent, which[region[known]], (c["end"][forward] - c["start"][forward])[known])
    np.add.at(times, which[region[known]], 1)
    return spent, times


def place(told: str) -> tuple[str, str]:
    """(function, line of the break that it goes on behind) by the name of a Python function."""
    found = RESUMED.match(told)
    return (f"{found[1]}: {found[2]}", f"{found[1]}:{found[3]}") if found else (told, "")
