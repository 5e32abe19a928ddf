"""What is odd about a file: a line each, so that its numbers are trusted no further than they hold."""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.work import Work
from analyzers.traces.model import Trace
from analyzers.traces.reading.distinct import distinct_values


def problems(work: Work) -> list[str]:
    """All that is odd, from the reader and from the events of this account."""
    told = list(work.trace.columns.meta["problems"])
    checks = device_problems(work) if work.device is not None else host_problems()
    return told + [line for line, holds in [*checks, *step_problems(work)] if holds]


def host_problems() -> Iterator[tuple[str, object]]:
    yield "no device events: operators and host collectives are accounted for instead", True


def device_problems(work: Work) -> Iterator[tuple[str, object]]:
    linked, total = work.linked, len(work.rows)
    unlinked = int((~linked).sum())
    early = work.launch_start[linked] - work.start[linked]
    overlapping, repeated = overlaps(work), total - len(distinct_values(work.trace.columns["correlation"][work.rows]))
    yield f"{unlinked} of {total} device events have no launch in the file", unlinked
    by = f"by up to {int(early.max(initial=0)) / 1e3:.1f} us: the clocks of host and device disagree"
    yield f"{int((early > 0).sum())} kernels start before their launch, {by}", (early > 0).any()
    yield f"{overlapping} device events overlap another one of their stream", overlapping
    yield f"{repeated} device events share their correlation with another: CUDA graphs", repeated and linked.any()


def overlaps(work: Work) -> int:
    """Events that begin before an earlier one of the same stream has ended."""
    lane = work.trace.columns["lane"][work.rows]
    order = np.lexsort((work.start, lane))
    found = 0
    for one in distinct_values(lane):
        rows = order[lane[order] == one]
        reach = np.maximum.accumulate(work.end[rows])
        found += int((work.start[rows][1:] < reach[:-1]).sum())
    return found


def step_problems(work: Work) -> Iterator[tuple[str, object]]:
    trace = work.trace
    outside = int((work.step() < 0).sum()) if trace.steps else 0
    cut = cut_steps(trace)
    yield f"{outside} of {len(work.rows)} events belong to no step", outside
    yield f"{', '.join(cut)} was cut by the end of the recording", cut
    yield "no ProfilerStep: the whole recording counts as one step", not trace.steps
    yield "steps overlap each other", overlapping(trace.steps)


def cut_steps(trace: Trace) -> list[str]:
    rows: Column = trace.columns["unfinished_row"]
    names = {trace.names[i] for i in trace.columns["name"][rows].tolist()}
    return sorted(name for name in names if name.startswith("ProfilerStep"))


def overlapping(steps: list[tuple[int, int, int]]) -> bool:
    return any(start < end for (_, _, end), (_, start, _) in pairwise(steps))
