"""Measure the work of a rank before each of its collectives, for a table by which ranks are compared.

A rank *arrives* at a collective when the collective starts on this rank. Its work for a collective is the time since
its previous arrival, without the time in which a collective blocked the rank. A rank with more work than the others
keeps them waiting. The collectives are in order of time.

Example: a rank arrives at 100 ms, is blocked until 130 ms, computes and arrives at the next collective at 200 ms. Its
work for that collective is 200 - 100 - 30 = 70 ms.

A send or a receive does not count as an arrival: only two ranks take part, and each stage of a pipeline sends and
receives at other times. Nor does a copy between devices, for which no other rank has to arrive.
"""

from collections.abc import Sequence

import numpy as np

from analyzers.columns import Column, Integers, Mask, narrowed
from analyzers.traces.answers.collectives import Labels, RankCollectives
from analyzers.traces.answers.idle import standing_still, subtract
from analyzers.traces.answers.messages import RankMessages
from analyzers.traces.columns.intervals import COMPUTE, MEMORY, CoveredTime, merge
from analyzers.traces.columns.phases import GC, HOST_PHASES, phase_intervals
from analyzers.traces.columns.work import Work
from analyzers.traces.reading.trace import Trace


def collective_columns(accounts: Sequence[RankCollectives], text_ids: dict[str, int]) -> dict[str, Column]:
    """Return the columns of a table with a row for each collective of each device or host of a trace.

    The names of the columns begin with `meet_`; the docstring of `_account_columns` explains them. `text_ids` is
    {distinct text of the trace: its index}; new texts are added to it.
    """
    tables = [_account_columns(number, collectives, text_ids) for number, collectives in enumerate(accounts)]
    return {f"meet_{name}": narrowed(np.concatenate([table[name] for table in tables])) for name in tables[0]}


def _account_columns(number: int, collectives: RankCollectives, text_ids: dict[str, int]) -> dict[str, Column]:
    """Return the columns of the table of collectives for one device or host, without the prefix `meet_`.

    Times are in ns. `number` is the index of the device or host in the trace. `start` and `end` are the times of the
    collective. `since` is when the rank's work for this collective began, and `work_ns` how long that work took.
    `overlap_ns` is how long the rank went on working after the collective began, and `blocked_ns` how long the rank was
    then idle before its next arrival. `compute_ns`, `copy_ns` and `<phase>_ns` are the parts of the work: computing,
    copies and phases of the host. `name`, `group` and `dtype` are indices of texts; -1 stands for what was not
    recorded.
    """
    work, c = collectives.work, collectives.work.trace.columns
    start, end = c["start"][collectives.rows], c["end"][collectives.rows]
    meets = ~np.isin(np.arange(len(start)), RankMessages(collectives).table[:, 0]) & ~collectives.is_copy
    since = np.maximum.accumulate(_previous_arrivals(work.trace, start, meets))
    still = CoveredTime(*standing_still(work, collectives.blocking))
    # A phase of the host delays the launch, not the kernel, so phases are measured up to the launching call.
    launched = work.launch_start[collectives.indices]
    host = np.where(work.launch[collectives.indices] >= 0, launched, start)
    return {
        "account": np.full(len(start), number),
        "name": _text_numbers(collectives.name, text_ids),
        "group": _text_numbers(collectives.group, text_ids),
        "dtype": _text_numbers(collectives.dtype, text_ids),
        "members": collectives.members,
        "elements": collectives.sizes,
        "sequence": collectives.recorded("sequence"),
        "step": collectives.step(),
        "start": start,
        "end": end,
        "since": since,
        "work_ns": start - since - still.between(since, start),
        "overlap_ns": overlaps(start, following(start, meets, start.max(initial=0)), still),
        "blocked_ns": still.between(start, following(start, meets, end.max(initial=0))),
        "compute_ns": _time_of_kind(work, COMPUTE).between(since, start),
        "copy_ns": _time_of_kind(work, MEMORY).between(since, start),
        **_host_phase_columns(work.trace, _previous_arrivals(work.trace, host, meets), host),
    }


def _text_numbers(labels: Labels, text_ids: dict[str, int]) -> Integers:
    """Return, for each item of `labels`, the index of its text in `text_ids`; new texts are added to it."""
    return np.array([text_ids.setdefault(text, len(text_ids)) for text in labels.texts], np.int64)[labels.code]


def following(arrival: Column, meets: Mask, last: int) -> Column:
    """Return, for each arrival time (ns), the next arrival selected by the mask `meets`; `last` if there is none."""
    return np.append(arrival[meets], last)[np.cumsum(meets)]


def _previous_arrivals(trace: Trace, arrival: Column, meets: Mask) -> Column:
    """Return, for each arrival time at a collective (ns), the previous arrival selected by the mask `meets`.

    An arrival without a previous one gets the start of the step around the first arrival, or of the recording if there
    is no such step.
    """
    if not len(arrival):
        return arrival
    starts = [start for _, start, end in trace.steps if start <= arrival[0] < end]
    first = starts[-1] if starts else min(trace.origin, int(arrival[0]))
    return np.append(first, arrival[meets])[np.cumsum(meets) - meets]


def overlaps(arrival: Column, until: Column, still: CoveredTime) -> Integers:
    """Return how long (ns) the rank went on working after each arrival at a collective.

    The work ends when the rank is next idle (`still` has the idle intervals), at the latest at the rank's next arrival
    (`until`). `arrival` and `until` have a time (ns) for each collective.
    """
    index = np.searchsorted(still.end, arrival, side="right")
    stands = np.append(still.start, np.iinfo(np.int64).max)[index]
    return np.asarray(np.minimum(stands, until) - arrival).clip(min=0)


def _time_of_kind(work: Work, kind: int) -> CoveredTime:
    return CoveredTime(work.start[work.kind == kind], work.end[work.kind == kind])


def _host_phase_columns(trace: Trace, low: Column, high: Column) -> dict[str, Integers]:
    """Return, for each phase of the host such as data loading, a column of the ns spent in it from `low` to `high`.

    `low[i]` and `high[i]` are the ends of the interval for collective i (ns of the trace). The columns are named
    `<phase>_ns`.
    """
    # Garbage is collected inside other phases, too: there it counts as garbage collection alone.
    collecting = merge(*phase_intervals(trace, [GC]))
    intervals = {phase: subtract(merge(*phase_intervals(trace, [phase])), collecting) for phase in HOST_PHASES}
    intervals[GC] = collecting
    return {f"{phase}_ns": CoveredTime(*spans).between(low, high) for phase, spans in intervals.items()}
