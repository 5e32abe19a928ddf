"""Find problems that limit what a trace can show: unlinked kernels, disagreeing clocks, truncated or missing steps."""

from collections.abc import Iterator
from itertools import pairwise

import msgspec
import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.work import BACKWARD, Work, names_in_phases
from analyzers.traces.reading.distinct import distinct_values
from analyzers.traces.reading.problems import Problem, ProblemKind
from analyzers.traces.reading.trace import NO_STEP, Trace


def problems(work: Work) -> list[Problem]:
    """Return all problems that limit the meaning of the numbers about a device or host, first those of the file."""
    of_file = msgspec.convert(work.trace.columns.meta["problems"], list[Problem])
    of_account = _device_problems(work) if work.device is not None else [Problem(kind=ProblemKind.NO_DEVICE_EVENTS)]
    return [*of_file, *of_account, *_step_problems(work)]


def _device_problems(work: Work) -> Iterator[Problem]:
    linked, total = work.linked, len(work.rows)
    if unlinked := int((~linked).sum()):
        yield Problem(kind=ProblemKind.NO_LAUNCH, count=unlinked, total=total)
    expected, lost = work.expected_and_lost
    if lost:
        yield Problem(kind=ProblemKind.LOST_KERNELS, count=lost, total=expected)
    early_ns = work.launch_start[linked] - work.start[linked]
    if (early_ns > 0).any():
        count, most = int((early_ns > 0).sum()), int(early_ns.max())
        yield Problem(kind=ProblemKind.EARLY_KERNELS, count=count, most_ns=most)
    if overlapping := overlapping_events(work):
        yield Problem(kind=ProblemKind.OVERLAPPING_EVENTS, count=overlapping)
    repeated = total - len(distinct_values(work.trace.columns["correlation"][work.rows]))
    # Without any launch in the file correlations may be missing altogether, and then all are equal.
    if repeated and linked.any():
        yield Problem(kind=ProblemKind.SHARED_CORRELATION, count=repeated)


def overlapping_events(work: Work) -> int:
    lane = work.trace.columns["lane"][work.rows]
    order = np.lexsort((work.start, lane))
    count = 0
    for stream in distinct_values(lane):
        rows = order[lane[order] == stream]
        latest_end = np.maximum.accumulate(work.end[rows])
        count += int((work.start[rows][1:] < latest_end[:-1]).sum())
    return count


def _step_problems(work: Work) -> Iterator[Problem]:
    trace = work.trace
    if not trace.steps:
        yield Problem(kind=ProblemKind.NO_STEPS)
    elif outside := int((work.step() == NO_STEP).sum()):
        yield Problem(kind=ProblemKind.OUTSIDE_STEPS, count=outside, total=len(work.rows))
    if cut := cut_steps(trace):
        yield Problem(kind=ProblemKind.CUT_STEPS, names=cut)
    if any(start < end for (_, _, end), (_, start, _) in pairwise(trace.steps)):
        yield Problem(kind=ProblemKind.OVERLAPPING_STEPS)
    if count := forward_only_steps(work):
        yield Problem(kind=ProblemKind.FORWARD_ONLY_STEPS, count=count, total=len(trace.steps))


def forward_only_steps(work: Work) -> int:
    """Return how many marked steps with work have no backward pass although others have one; 0 for inference."""
    trace = work.trace
    of_backward = names_in_phases(trace, (BACKWARD, "forward and backward"))[trace.columns["name"]]
    starts = np.sort(trace.columns["start"][of_backward])
    # The last call of profiler.step() may begin a step in which nothing is left to do.
    steps = work.step()
    busy = np.bincount(steps[steps != NO_STEP], minlength=len(trace.steps)) > 0
    bounds = np.array([(begin, end) for _, begin, end in trace.steps], np.int64).reshape(-1, 2)[busy]
    before = np.searchsorted(starts, bounds)
    trains = before[:, 1] > before[:, 0]
    return int(np.count_nonzero(~trains)) if trains.any() else 0


def cut_steps(trace: Trace) -> list[str]:
    rows: Column = trace.columns["unfinished_row"]
    names = {trace.names[i] for i in trace.columns["name"][rows].tolist()}
    return sorted(name for name in names if name.startswith("ProfilerStep"))
