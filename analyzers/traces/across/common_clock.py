"""Many ranks on one clock: how each one's time divides, and how late each came to collectives."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import pandas as pd

from analyzers import store
from analyzers.columns import Column
from analyzers.run import Artefact
from analyzers.traces.across.clocks import Clock
from analyzers.traces.across.rank_waits import RankComparison, compare_ranks
from analyzers.traces.columns.intervals import COMMUNICATION, COMPUTE, CoveredTime
from analyzers.traces.loading import Recording, load
from analyzers.words import rank_ranges

PARTS = ("compute_ns", "exposed_communication_ns", "exposed_memory_ns", "idle_ns")
Window = tuple[int, int]
OPEN_AT_MOST = 8
"""Sets of recordings that are kept open for the next question."""


@dataclass(frozen=True)
class AlignedRecordings:
    """Recordings on a common clock, which starts with the earliest event."""

    recordings: Sequence[Recording]
    comparison: RankComparison | None
    _covers: dict[int, tuple[CoveredTime, CoveredTime, CoveredTime]] = field(default_factory=dict)

    @cached_property
    def begins(self) -> list[int]:
        """When each begins by the clock of the first rank, in Unix ns."""
        return [
            int(self.to_unix_ns(place, np.array([one.trace.origin]))[0]) for place, one in enumerate(self.recordings)
        ]

    @cached_property
    def clocks(self) -> list[Clock]:
        """One a recording; where nothing tells, its clock is taken to be right."""
        known = {clock.rank: clock for clock in self.comparison.clocks} if self.comparison else {}
        ranks = [one.rank or 0 for one in self.recordings]
        return [known.get(rank) or Clock(rank=rank) for rank in ranks]

    def to_unix_ns(self, place: int, at: Column) -> Column:
        """Moments of a recording's columns by the clock of the first rank, in Unix ns."""
        shown = at + self.recordings[place].base
        return shown - self.clocks[place].ahead(shown)

    def to_common_clock(self, place: int, at: Column) -> Column:
        """Moments of a recording's columns on the common clock."""
        return self.to_unix_ns(place, at) - self.origin

    def to_local_clock(self, place: int, at: Column) -> Column:
        """Moments of the common clock as the columns of a recording have them."""
        return self.clocks[place].shows(at + self.origin) - self.recordings[place].base

    @property
    def origin(self) -> int:
        return min(self.begins)

    @property
    def shifts(self) -> list[int]:
        return [begin - self.origin for begin in self.begins]

    @cached_property
    def spans(self) -> list[int]:
        traces = [one.trace for one in self.recordings]
        return [int(np.max(trace.columns["end"], initial=trace.origin)) - trace.origin for trace in traces]

    def divided(self, place: int, edges: Column) -> Column:
        """[part, bin] how the work of one recording divides between moments of the common clock, in ns."""
        if place not in self._covers:
            self._covers[place] = covers(self.recordings[place])
        at, length = self.to_local_clock(place, edges), np.diff(edges)
        c, n, w = (np.minimum(cover.between(at[:-1], at[1:]), length) for cover in self._covers[place])
        return np.array([c, n - c, w - n, length - w])


def covers(one: Recording) -> tuple[CoveredTime, CoveredTime, CoveredTime]:
    """What computing, kernels and all work of an account cover."""
    c = one.trace.columns
    rows = np.flatnonzero(c["account"] == one.number)
    start, end, kind = c["start"][rows], c["end"][rows], c["kind"][rows]
    computing = kind == COMPUTE
    kernels = computing | (kind == COMMUNICATION)
    return (
        CoveredTime(start[computing], end[computing]),
        CoveredTime(start[kernels], end[kernels]),
        CoveredTime(start, end),
    )


@lru_cache(maxsize=OPEN_AT_MOST)
def load_aligned(artefacts: tuple[Artefact, ...], options: store.Options) -> AlignedRecordings:
    """All recordings that can be read.

    Raises:
        InputError: None can.
    """
    good, bad = load(artefacts, options)
    if not good:
        raise bad[0][1]
    return AlignedRecordings(good, compare_ranks(good))


def axis(artefacts: Sequence[Artefact], options: store.Options | None = None) -> pd.DataFrame:
    """A row an account: path, rank, `shift_ns` to add to its moments so that all begin on one clock, and `span_ns`.

    The earliest trace has shift 0. Clocks are compared by the collectives that ranks share.
    """
    all_of = load_aligned(tuple(artefacts), options or store.Options())
    rows = zip(all_of.recordings, all_of.shifts, all_of.spans, strict=True)
    return pd.DataFrame(
        [(str(one.artefact.path), one.rank, shift, span) for one, shift, span in rows],
        columns=["path", "rank", "shift_ns", "span_ns"],
    )


def ranks_timeline(
    artefacts: Sequence[Artefact],
    options: store.Options | None = None,
    window: Window | None = None,
    bins: int = 100,
    rows: int = 40,
) -> pd.DataFrame:
    """All ranks in a window of the common clock (all by default), as `bins` equal stretches of time.

    Columns: ranks ("0-4, 6"), rank (the first of them), bin, start_ns, dur_ns, and `PARTS`, which add up to dur_ns:
    what is neither computing nor exposed is idle. Of more than `rows` ranks those that differ most from the middle one
    keep a row of their own; the others are folded into one, which has their mean.
    """
    all_of = load_aligned(tuple(artefacts), options or store.Options())
    begin, end = window or (0, max(at + span for at, span in zip(all_of.shifts, all_of.spans, strict=True)))
    edges = begin + (end - begin) * np.arange(bins + 1, dtype=np.int64) // bins
    parts = np.array([all_of.divided(place, edges) for place in range(len(all_of.recordings))], np.int64)
    folded = fold([-1 if one.rank is None else one.rank for one in all_of.recordings], parts, rows)
    return pd.concat([rank_rows(ranks, values, edges) for ranks, values in folded], ignore_index=True)


def fold(ranks: Sequence[int], parts: Column, rows: int) -> list[tuple[list[int], Column]]:
    """(ranks, [part, bin]) of each row to draw."""
    if len(ranks) <= rows:
        return [([rank], part) for rank, part in zip(ranks, parts, strict=True)]
    apart = np.abs(parts - np.median(parts, axis=0)).sum(axis=(1, 2))
    alone = sorted(np.argsort(-apart, kind="stable")[: rows - 1].tolist())
    rest = [i for i in range(len(ranks)) if i not in set(alone)]
    mean = np.floor(parts[rest].mean(axis=0)).astype(np.int64)
    mean[-1] += (parts[rest[0]].sum(axis=0) - mean.sum(axis=0)).astype(np.int64)
    return [([ranks[i]], parts[i]) for i in alone] + [([ranks[i] for i in rest], mean)]


def rank_rows(ranks: list[int], values: Column, edges: Column) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "ranks": rank_ranges(ranks),
            "rank": ranks[0],
            "bin": np.arange(len(edges) - 1),
            "start_ns": edges[:-1],
            "dur_ns": np.diff(edges),
            **dict(zip(PARTS, values, strict=True)),
        }
    )


def lateness(artefacts: Sequence[Artefact], options: store.Options | None = None, limit: int = 200) -> pd.DataFrame:
    """The `limit` collectives with most waiting, in order of time: a row a rank of each.

    Columns: which (its number among all matched ones), rank, name, group, start_ns and end_ns on the common clock,
    late_ns (after the middle rank), wait_ns (for the last one), excess_ns (own work before it, beyond the others').
    """
    all_of = load_aligned(tuple(artefacts), options or store.Options())
    columns = ["which", "rank", "name", "group", "start_ns", "end_ns", "late_ns", "wait_ns", "excess_ns"]
    if all_of.comparison is None:
        return pd.DataFrame(columns=columns)
    late, met = all_of.comparison.late, all_of.comparison.late.met
    waited = np.add.reduceat(late.wait, met.first)
    chosen = np.isin(met.which, np.argsort(-waited, kind="stable")[:limit])
    rows = np.flatnonzero(chosen)
    return pd.DataFrame(
        {
            "which": met.which[rows],
            "rank": np.array(met.ranks)[met.rank[rows]],
            "name": [met.told(row, "name") for row in rows.tolist()],
            "group": [met.told(row, "group") for row in rows.tolist()],
            "start_ns": late.arrival[rows] - all_of.origin,
            "end_ns": late.end[rows] - all_of.origin,
            "late_ns": late.lateness[rows],
            "wait_ns": late.wait[rows],
            "excess_ns": late.excess()[rows],
        },
        columns=columns,
    )
