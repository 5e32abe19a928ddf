"""Convert the times of many ranks to one clock; compute how each rank's time divides and how late each rank arrives.

The *common clock* is the clock of the first rank; its zero is the earliest event of all recordings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from analyzers import store
from analyzers.columns import Column, Integers
from analyzers.run import Artefact
from analyzers.traces.clocks import Clock
from analyzers.traces.columns import COMMUNICATION, COMPUTE, CoveredTime
from analyzers.traces.loading import Recording, load
from analyzers.traces.rank_waits import RankComparison, compare_ranks
from analyzers.words import rank_ranges

PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
Window = tuple[int, int]
# Sets of recordings that are kept open, so that the next question about one of them is answered at once.
_OPEN_AT_MOST = 8
_LATENESS_COLUMNS = ["which", "rank", "name", "group", "start_ns", "end_ns", "late_ns", "wait_ns", "excess_ns"]


@dataclass(frozen=True)
class AlignedRecordings:
    """The recordings of all ranks, with methods that convert their times to one common clock.

    The common clock is the clock of the first rank, in ns since the earliest event of all recordings. `index` in the
    methods is the index of a recording in `recordings`.
    """

    recordings: Sequence[Recording]
    comparison: RankComparison | None
    _coverage: dict[int, tuple[CoveredTime, CoveredTime, CoveredTime]] = field(default_factory=dict)

    @cached_property
    def begins(self) -> list[int]:
        """The start of each recording, in Unix ns of the first rank's clock."""
        return [
            int(self.to_unix_ns(index, np.array([recording.trace.origin]))[0])
            for index, recording in enumerate(self.recordings)
        ]

    @cached_property
    def clocks(self) -> list[Clock]:
        """The clock of each recording; if no collective shows how far a clock is ahead, its offset is taken to be 0."""
        known = {clock.rank: clock for clock in self.comparison.clocks} if self.comparison else {}
        ranks = [recording.rank or 0 for recording in self.recordings]
        return [known.get(rank) or Clock(rank=rank) for rank in ranks]

    def to_unix_ns(self, index: int, at: Column) -> Integers:
        """Convert times of one trace to Unix ns of the first rank's clock.

        `index` is the index of the recording; `at` are times in ns of the trace's own clock, as in the trace's
        columns.
        """
        shown = at + self.recordings[index].trace.base
        return shown - self.clocks[index].ahead(shown)

    def to_common_clock(self, index: int, at: Column) -> Integers:
        """Convert times of one trace to ns of the common clock.

        `index` is the index of the recording; `at` are times in ns of the trace's own clock, as in the trace's
        columns.
        """
        return self.to_unix_ns(index, at) - self.origin

    def to_local_clock(self, index: int, at: Column) -> Integers:
        """Convert times of the common clock (ns) to times of one trace's own clock (ns), which the trace's columns
        use.
        """
        return self.clocks[index].shows(at + self.origin) - self.recordings[index].trace.base

    @property
    def origin(self) -> int:
        """The zero of the common clock: the time of the earliest event, in Unix ns of the first rank's clock."""
        return min(self.begins)

    @property
    def shifts(self) -> list[int]:
        """The start of each recording on the common clock, in ns."""
        return [begin - self.origin for begin in self.begins]

    @cached_property
    def spans(self) -> list[int]:
        traces = [recording.trace for recording in self.recordings]
        return [int(np.max(trace.columns["end"], initial=trace.origin)) - trace.origin for trace in traces]

    def parts_between(self, index: int, edges: Integers) -> Integers:
        """Return how a recording's time divides between successive `edges`, as int64[part, interval] of ns.

        `index` is the index of the recording, `edges` are times of the common clock (ns). The parts are `PARTS`:
        computing, communication that overlaps with no computing, copies that overlap with no kernel, and idle time,
        in which none of these runs.
        """
        if index not in self._coverage:
            self._coverage[index] = coverage(self.recordings[index])
        at, length = self.to_local_clock(index, edges), np.diff(edges)
        # A drifting clock makes a bin some ns longer or shorter than it is on the common clock.
        computing, kernels, busy = (
            np.minimum(cover.between(at[:-1], at[1:]), length) for cover in self._coverage[index]
        )
        return np.array([computing, kernels - computing, busy - kernels, length - busy])


def coverage(recording: Recording) -> tuple[CoveredTime, CoveredTime, CoveredTime]:
    """Return three unions of intervals: when a recording computes, computes or communicates, and does any work at all.

    "Any work" includes copies. All times are in ns of the trace's own clock.
    """
    c = recording.trace.columns
    rows = np.flatnonzero(c["account"] == recording.number)
    start, end, kind = c["start"][rows], c["end"][rows], c["kind"][rows]
    computing = kind == COMPUTE
    kernels = computing | (kind == COMMUNICATION)
    return (
        CoveredTime(start[computing], end[computing]),
        CoveredTime(start[kernels], end[kernels]),
        CoveredTime(start, end),
    )


@lru_cache(maxsize=_OPEN_AT_MOST)
def load_aligned(artefacts: tuple[Artefact, ...], options: store.Options) -> AlignedRecordings:
    """Return all recordings that can be read, with what is needed to convert their times to one clock.

    Raises:
        InputError: No file can be read.
    """
    recordings, failures = load(artefacts, options)
    if not recordings:
        raise failures[0][1]
    return AlignedRecordings(recordings, compare_ranks(recordings))


def axis(artefacts: Sequence[Artefact], options: store.Options | None = None) -> pd.DataFrame:
    """Return a table that places each trace on the common clock: path, rank, `shift_ns` and `span_ns`.

    It has a row per device of a trace (or host, if no device worked). `shift_ns` is the start of the trace on the
    common clock, which is 0 at the earliest event of all traces; `span_ns` is its duration.
    """
    aligned = load_aligned(tuple(artefacts), options or store.Options())
    rows = zip(aligned.recordings, aligned.shifts, aligned.spans, strict=True)
    return pd.DataFrame(
        [(str(recording.artefact.path), recording.rank, shift, span) for recording, shift, span in rows],
        columns=["path", "rank", "shift_ns", "span_ns"],
    )


def ranks_timeline(
    artefacts: Sequence[Artefact],
    options: store.Options | None = None,
    window: Window | None = None,
    bins: int = 100,
    rows: int = 40,
) -> pd.DataFrame:
    """Return how the time of each rank divides in `bins` equal intervals of a window (ns of the common clock).

    Without a `window` it is the whole recording. Columns: ranks ("0-4, 6"), rank (the first of them), bin, start_ns,
    dur_ns, and `PARTS`, which add up to dur_ns. If there are more than `rows` ranks, those that differ most from the
    median have a row each; the others share one row with their mean.
    """
    aligned = load_aligned(tuple(artefacts), options or store.Options())
    begin, end = window or (0, max(at + span for at, span in zip(aligned.shifts, aligned.spans, strict=True)))
    edges = begin + (end - begin) * np.arange(bins + 1, dtype=np.int64) // bins
    parts = np.array([aligned.parts_between(index, edges) for index in range(len(aligned.recordings))], np.int64)
    ranks = [-1 if recording.rank is None else recording.rank for recording in aligned.recordings]
    tables = [_rank_rows(*row, edges) for row in _with_shared_row(ranks, parts, rows)]
    return pd.concat(tables, ignore_index=True)


def _with_shared_row(ranks: Sequence[int], parts: Integers, rows: int) -> list[tuple[list[int], Integers]]:
    """Return at most `rows` rows of a chart, each as (its ranks, int64[part, interval] of ns).

    If there are more ranks than rows, those near the median share the last row, with their mean. `parts` is
    int64[rank, part, interval]. Example: with 512 ranks and 40 rows, each of the 39 ranks farthest from the median
    has a row of its own, so that an outlier stays visible; the other 473 share the last row.
    """
    if len(ranks) <= rows:
        return [([rank], part) for rank, part in zip(ranks, parts, strict=True)]
    distance = np.abs(parts - np.median(parts, axis=0)).sum(axis=(1, 2))
    alone = sorted(np.argsort(-distance, kind="stable")[: rows - 1].tolist())
    rest = [i for i in range(len(ranks)) if i not in set(alone)]
    mean = np.floor(parts[rest].mean(axis=0)).astype(np.int64)
    # Rounding down loses some ns of each bin: idle takes them, so that the parts still add up.
    mean[-1] += (parts[rest[0]].sum(axis=0) - mean.sum(axis=0)).astype(np.int64)
    return [([ranks[i]], parts[i]) for i in alone] + [([ranks[i] for i in rest], mean)]


def _rank_rows(ranks: list[int], parts: Integers, edges: Integers) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "ranks": rank_ranges(ranks),
            "rank": ranks[0],
            "bin": np.arange(len(edges) - 1),
            "start_ns": edges[:-1],
            "dur_ns": np.diff(edges),
            **dict(zip(PARTS, parts, strict=True)),
        }
    )


def lateness(artefacts: Sequence[Artefact], options: store.Options | None = None, limit: int = 200) -> pd.DataFrame:
    """Return a table of the `limit` collectives with most waiting: a row per collective and rank, in order of time.

    Columns: which (the collective's number among all matched ones), rank, name, group, start_ns and end_ns on the
    common clock, late_ns (how long after the median rank this rank arrived), wait_ns (how long this rank waited for the
    last one), excess_ns (how much longer than the other ranks it worked before it arrived). The table is empty if no
    collective was recorded by several ranks.
    """
    aligned = load_aligned(tuple(artefacts), options or store.Options())
    if aligned.comparison is None:
        return pd.DataFrame(columns=_LATENESS_COLUMNS)
    late = aligned.comparison.lateness
    matched = late.matched
    waited = np.add.reduceat(late.wait, matched.first_row)
    rows = np.flatnonzero(np.isin(matched.collective, np.argsort(-waited, kind="stable")[:limit]))
    return pd.DataFrame(
        {
            "which": matched.collective[rows],
            "rank": np.array(matched.ranks)[matched.rank_index[rows]],
            "name": [matched.text(row, "name") for row in rows.tolist()],
            "group": [matched.text(row, "group") for row in rows.tolist()],
            "start_ns": late.arrival[rows] - aligned.origin,
            "end_ns": late.end[rows] - aligned.origin,
            "late_ns": late.lateness[rows],
            "wait_ns": late.wait[rows],
            "excess_ns": late.excess()[rows],
        },
        columns=_LATENESS_COLUMNS,
    )
