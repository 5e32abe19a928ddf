"""What a rank did up to each collective: the table by which ranks are compared.

Collectives in order of time, each with the time since the previous arrival, less what the rank stood still for a
collective in between: that is its own work, and whoever has more of it than the others keeps them waiting.
"""

from collections.abc import Sequence

import numpy as np

from analyzers.columns import Column
from analyzers.traces.answers.collectives import Labels, RankCollectives
from analyzers.traces.answers.idle import standing, without
from analyzers.traces.columns.intervals import COMPUTE, MEMORY, CoveredTime, merge
from analyzers.traces.columns.phases import GC, HOST_PHASES, phase_intervals
from analyzers.traces.columns.work import Work
from analyzers.traces.model import Trace
from analyzers.traces.reading.event_table import downcast


def collective_columns(accounts: Sequence[RankCollectives], table: dict[str, int]) -> dict[str, Column]:
    """`meet_*`: a row a collective of an account; `table` numbers the texts and takes new ones."""
    parts = [of_account(number, met, table) for number, met in enumerate(accounts)]
    return {f"meet_{name}": downcast(np.concatenate([part[name] for part in parts])) for name in parts[0]}


def of_account(number: int, met: RankCollectives, table: dict[str, int]) -> dict[str, Column]:
    """The columns of one account.

    `start`, `end` of the collective; `since` where its rank's work for it began; `work_ns` that work;
    `overlap_ns` how long the rank then went on beside it; `blocked_ns` how long it stood still before its next
    arrival; `compute_ns`, `copy_ns` and `<phase>_ns` what the work consisted of.
    """
    work, c = met.work, met.work.trace.columns
    start, end = c["start"][met.rows], c["end"][met.rows]
    since = np.maximum.accumulate(begun(work.trace, start))
    held = CoveredTime(*standing(work))
    blocked = held.between(since, start)
    host = np.where(work.launch[met.places] >= 0, work.launch_start[met.places], start)
    return {
        "account": np.full(len(start), number),
        "name": numbers(met.name, table),
        "group": numbers(met.group, table),
        "dtype": numbers(met.dtype, table),
        "members": met.members,
        "elements": met.sizes,
        "sequence": met.told("sequence"),
        "step": met.step(),
        "start": start,
        "end": end,
        "since": since,
        "work_ns": start - since - blocked,
        "overlap_ns": overlaps(start, held),
        "blocked_ns": held.between(start, np.append(start[1:], end.max(initial=0))),
        "compute_ns": of_kind(work, COMPUTE).between(since, start),
        "copy_ns": of_kind(work, MEMORY).between(since, start),
        **host_phases(work.trace, begun(work.trace, host), host),
    }


def numbers(labels: Labels, table: dict[str, int]) -> Column:
    """The number of each one's text in a table, which takes those that it has not."""
    return np.array([table.setdefault(text, len(table)) for text in labels.texts], np.int64)[labels.code]


def begun(trace: Trace, arrival: Column) -> Column:
    """The previous arrival; for the first the beginning of its step, else of the recording."""
    if not len(arrival):
        return arrival
    step_starts = [start for _, start, end in trace.steps if start <= arrival[0] < end]
    return np.append(step_starts[-1] if step_starts else min(trace.origin, int(arrival[0])), arrival[:-1])


def overlaps(arrival: Column, held: CoveredTime) -> Column:
    """From each arrival to the moment the rank stands still, or to its next arrival."""
    until = np.append(arrival[1:], arrival[-1:])
    place = np.searchsorted(held.end, arrival, side="right")
    stands = np.append(held.start, np.iinfo(np.int64).max)[place]
    found: Column = np.maximum(np.minimum(stands, until) - arrival, 0)
    return found


def of_kind(work: Work, kind: int) -> CoveredTime:
    return CoveredTime(work.start[work.kind == kind], work.end[work.kind == kind])


def host_phases(trace: Trace, low: Column, high: Column) -> dict[str, Column]:
    """The time between two instants that the host spent in each phase of its own; collecting garbage counts as that."""
    collecting = merge(*phase_intervals(trace, [GC]))
    found = {phase: without(merge(*phase_intervals(trace, [phase])), collecting) for phase in HOST_PHASES} | {
        GC: collecting
    }
    return {f"{phase}_ns": CoveredTime(*intervals).between(low, high) for phase, intervals in found.items()}
