"""The work that a trace accounts for: kernels and copies of each device, or on a CPU the operators and collectives."""

import re
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.intervals import COMMUNICATION as COMMUNICATING
from analyzers.traces.columns.intervals import COMPUTE, MEMORY
from analyzers.traces.columns.nesting import NONE, innermost_selected, self_times
from analyzers.traces.model import ANNOTATIONS, COMMUNICATION, COPIES, LAUNCHES, OPS, Trace
from analyzers.traces.reading.distinct import distinct_values

# gloo runs a collective, the wait for others included, inside such an annotation on a thread of its own.
HOST_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc):")
# Issuing a collective is not computing, and what autograd calls its own may do nothing but wait for one.
HOST_OPERATOR = re.compile(r"^(?!_?c10d|autograd::|gloo|mpi|ucc|nccl|profiler::)\w+::")
NO_STEP = -1


@dataclass(frozen=True)
class Work:
    """The events of one account: rows of the trace, the kind of each, and the row of the call that launched it.

    `launch` is NONE where the file has no such call; a host event launches itself. `own` is the time not spent in
    events that it calls, which differs from its length only on a host.
    """

    trace: Trace
    device: int | None
    rows: Column
    kind: Column
    launch: Column
    own: Column

    @cached_property
    def start(self) -> Column:
        return self.trace.columns["start"][self.rows]

    @cached_property
    def end(self) -> Column:
        return self.trace.columns["end"][self.rows]

    @cached_property
    def linked(self) -> Column:
        found: Column = self.launch != NONE
        return found

    @cached_property
    def launch_start(self) -> Column:
        return np.where(self.linked, self.trace.columns["start"][self.launch], -1)

    @cached_property
    def launch_end(self) -> Column:
        return np.where(self.linked, self.trace.columns["end"][self.launch], -1)

    @cached_property
    def phase(self) -> Column:
        """The phase (a number in `phases.NAMES`) that each event was launched in; -1 where no launch is known."""
        return np.where(self.linked, self.trace.columns["phase"][self.launch], -1)

    def step(self) -> Column:
        """The position in `trace.steps` of the step that contains each event's launch, or NO_STEP."""
        return np.where(self.linked, self.trace.step_index_at(self.launch_start), NO_STEP)


def work_of_accounts(trace: Trace) -> list[Work]:
    """An account for each device that worked; the host's where none did."""
    if not len(trace.work):
        return [host_work(trace)]
    return [device_work(trace, int(device)) for device in distinct_values(trace.devices)]


def device_work(trace: Trace, device: int) -> Work:
    c = trace.columns
    rows = trace.work[trace.devices == device]
    communicates = trace.text_matches(COMMUNICATION)[c["name"][rows]] | np.isin(rows, c["collective_row"])
    return Work(
        trace=trace,
        device=device,
        rows=rows,
        kind=np.select(
            [trace.category_matches(COPIES)[rows], communicates],
            [np.int8(MEMORY), np.int8(COMMUNICATING)],
            np.int8(COMPUTE),
        ),
        launch=launching_rows(trace, c["correlation"][rows]),
        own=c["end"][rows] - c["start"][rows],
    )


def launching_rows(trace: Trace, correlation: Column) -> Column:
    """The row of the call that launched each correlation, NONE where the file has none."""
    calls = np.flatnonzero(trace.category_matches(LAUNCHES) & (trace.columns["correlation"] >= 0))
    if not len(calls):
        return np.full(len(correlation), NONE)
    calls = calls[np.argsort(trace.columns["correlation"][calls], kind="stable")]
    known = trace.columns["correlation"][calls]
    place = np.minimum(np.searchsorted(known, correlation), len(known) - 1)
    return np.where(known[place] == correlation, calls[place], NONE)


def host_work(trace: Trace) -> Work:
    """Operators outside the collectives' own threads, and the collectives that ran there."""
    c = trace.columns
    collective = trace.name_matches(HOST_COLLECTIVE) & trace.category_matches(ANNOTATIONS)
    busy_lanes = distinct_values(c["lane"][collective])
    operators = trace.category_matches(OPS) & trace.name_matches(HOST_OPERATOR)
    chosen = collective | (operators & ~np.isin(c["lane"], busy_lanes))
    rows = np.flatnonzero(chosen)
    inner = innermost_selected(chosen, c["parent"])
    above = np.where(c["parent"] >= 0, inner[c["parent"]], NONE)
    return Work(
        trace=trace,
        device=None,
        rows=rows,
        kind=np.where(collective[rows], np.int8(COMMUNICATING), np.int8(COMPUTE)),
        launch=rows,
        own=self_times(np.where(chosen, above, NONE), c["start"], c["end"])[rows],
    )
