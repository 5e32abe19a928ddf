"""The same collective on several ranks: by group and sequence number, by order where there is none."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.traces.columns.phases import HOST_PHASES
from analyzers.traces.columns.work import NO_STEP
from analyzers.traces.loading import Key, Recording

SHIFT_AT_MOST = 32
"""Collectives that one recording may begin before another, where nothing but their order tells which is which."""
MEASURES = ("work_ns", "overlap_ns", "blocked_ns", "compute_ns", "copy_ns", *(f"{phase}_ns" for phase in HOST_PHASES))


@dataclass(frozen=True)
class MatchedCollectives:
    """Collectives that several ranks recorded: a row a rank of each, sorted by collective and rank.

    `first` is where each collective's rows begin, `which` the collective of each row, `rank` the place in `ranks`.
    """

    recordings: Sequence[Recording]
    place: Column
    rank: Column
    which: Column

    @property
    def ranks(self) -> list[int]:
        return [rank for one in self.recordings if (rank := one.rank) is not None]

    @cached_property
    def first(self) -> Column:
        return np.flatnonzero(np.diff(self.which, prepend=-1))

    def sorted_by(self, moment: Column) -> "MatchedCollectives":
        """The collectives in the order of a moment of each."""
        number = np.argsort(np.argsort(moment, kind="stable"), kind="stable")[self.which]
        order = np.lexsort((self.rank, number))
        return MatchedCollectives(self.recordings, self.place[order], self.rank[order], number[order])

    @property
    def count(self) -> int:
        return len(self.first)

    def column(self, name: str) -> Column:
        """A column of `meetings` for every row."""
        parts = [one.column(name) for one in self.recordings]
        return self.of_parts(parts)

    def of_parts(self, parts: Sequence[Column]) -> Column:
        """One value for each row, from columns of each recording."""
        offset = np.cumsum([0, *(len(part) for part in parts)])
        found: Column = np.concatenate([*parts, np.zeros(0, np.int64)])[offset[self.rank] + self.place]
        return found

    def told(self, row: int, name: str) -> str:
        """A text of one row: `name`, `group` or `dtype`."""
        one = self.recordings[self.rank[row]]
        number = one.trace.columns[f"meet_{name}"][one.rows[self.place[row]]]
        return str(one.trace.names[number])


def match_collectives(recordings: Sequence[Recording]) -> MatchedCollectives | None:
    """The collectives that all their recorded members took part in; None where there are none.

    Outside marked steps a recording's first collective is left out, as recordings begin at different moments.
    """
    known = sorted((one for one in recordings if one.rank is not None), key=lambda one: one.rank or 0)
    if len({one.rank for one in known}) < 2 or len({one.rank for one in known}) < len(known):
        return None
    keys = [one.keys() for one in known]
    if any(NO_STEP in one.column("step") and (one.column("sequence") < 0).any() for one in known):
        keys = anchored(known, keys)
    found = sorted(together(known, keys), key=lambda entry: entry[0])
    if not found:
        return None
    rows = [(place, rank, which) for which, (_, members) in enumerate(found) for rank, place in members]
    table = np.array(rows, np.int64)
    return MatchedCollectives(known, table[:, 0], table[:, 1], table[:, 2])


def together(known: Sequence[Recording], keys: Sequence[list[Key]]) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """(end on one rank, [(rank's place, collective's place)]) of what all members that were recorded have."""
    places = defaultdict[Key, list[tuple[int, int]]](list)
    for rank, mine in enumerate(keys):
        for place, key in enumerate(mine):
            if place or known[rank].trace.steps:
                places[key].append((rank, place))
    present = {one.rank for one in known}
    ends = [one.column("end") for one in known]
    for key, members in places.items():
        expected = present.intersection(key[1]) or present
        if len(members) == len(expected) > 1:
            yield int(ends[members[0][0]][members[0][1]]), members


def anchored(known: Sequence[Recording], keys: Sequence[list[Key]]) -> list[list[Key]]:
    """Keys by order alone, counted from the collective at which the recordings agree best with the first one."""
    reference = known[0]
    return [[*keys[0]]] + [shifted(reference, one, mine) for one, mine in zip(known[1:], keys[1:], strict=True)]


def shifted(reference: Recording, one: Recording, keys: list[Key]) -> list[Key]:
    """Count a recording's collectives as the reference does, which may have begun earlier or later."""
    by_kind = defaultdict[Key, list[int]](list)
    for place, kind in enumerate(one.kinds):
        by_kind[kind].append(place)
    found = list(keys)
    for kind, places in by_kind.items():
        other = [place for place, there in enumerate(reference.kinds) if there == kind]
        by = best_shift(reference.column("end")[other], one.column("end")[places])
        for order, place in enumerate(places, 1):
            if isinstance(found[place][-1], int) and found[place][2] != "sequence":
                found[place] = (*found[place][:-1], order + by)
    return found


def best_shift(ends: Column, others: Column) -> int:
    """How many collectives of `ends` came before the first of `others`, by how closely they end; may be negative."""

    def distance(by: int) -> tuple[float, int]:
        low, high = max(0, by), min(len(ends), len(others) + by)
        if high <= low:
            return (float("inf"), abs(by))
        return (float(np.median(np.abs(ends[low:high] - others[low - by : high - by]))), abs(by))

    return min(range(-SHIFT_AT_MOST, SHIFT_AT_MOST + 1), key=distance)
