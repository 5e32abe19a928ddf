"""Match the collectives of several ranks by group and sequence number, or else by their order.

Each rank records its own start and end of a collective. Matching finds, for example, the records of all ranks that
belong to one all_reduce.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from analyzers.columns import Column, Integers
from analyzers.traces.columns.work import HOST_PHASES
from analyzers.traces.loading import Recording
from analyzers.traces.reading.trace import NO_STEP, PEER_COPY

_NO_NUMBER = -1
# Collectives by which one recording may begin before another, where only their order says which is which.
_SHIFT_AT_MOST = 32
# Columns of `between_collectives` in which ranks are compared, all in ns.
MEASURES = ("work_ns", "overlap_ns", "blocked_ns", "compute_ns", "copy_ns", *(f"{phase}_ns" for phase in HOST_PHASES))


class Key(NamedTuple):
    """The properties that identify a collective: records of several ranks with equal keys are the same collective.

    If `sequence` is known, it is the collective's number in its process group. Else `order` counts, from 1, the
    collectives of the same group, name and number of elements within a step. `ranks` are the members of the group,
    empty if the file does not list them.
    """

    group: str
    ranks: tuple[int, ...]
    name: str
    elements: int = 0
    step: int = NO_STEP
    order: int = 0
    sequence: int = _NO_NUMBER


def _kinds_of(recording: Recording) -> list[Key]:
    """Return a `Key` for each collective of a recording, with only its process group, name and number of elements.

    Records of two ranks can only be the same collective if these three are equal.
    """
    # On a host the sizes are known only where shapes were recorded, which need not be so on every rank.
    on_device = recording.account.device is not None
    groups = recording.group_ranks
    columns = zip(recording.texts("group"), recording.texts("name"), recording.column("elements").tolist(), strict=True)
    return [Key(group, groups.get(group, ()), name, size if on_device else 0) for group, name, size in columns]


def _keys_of(recording: Recording) -> list[Key]:
    """Return the full `Key` of each collective of a recording; all ranks of a collective compute the same key for it.

    The key contains the sequence number in the process group, or else the collective's order within the step.
    """
    count = defaultdict[tuple[Key, int], int](int)
    keys = []
    columns = zip(
        _kinds_of(recording), recording.column("sequence").tolist(), recording.column("step").tolist(), strict=True
    )
    for kind, sequence, step in columns:
        if sequence >= 0:
            # In an uneven all-to-all each rank moves another number of elements.
            keys.append(kind._replace(elements=0, sequence=sequence))
        else:
            count[kind, step] += 1
            keys.append(kind._replace(step=step, order=count[kind, step]))
    return keys


@dataclass(frozen=True)
class MatchedCollectives:
    """Collectives that several ranks recorded: a row per collective and rank, sorted by collective, then by rank.

    For each row, `collective` is the number of the collective (from 0), `rank_index` the index of the rank in `ranks`,
    and `position` the index of the collective in the recording of this rank. Two collectives of three ranks make six
    rows.
    """

    recordings: Sequence[Recording]
    position: Integers
    rank_index: Integers
    collective: Integers
    _columns: dict[str, Integers] = field(default_factory=dict, repr=False)

    @cached_property
    def ranks(self) -> list[int]:
        return [rank for recording in self.recordings if (rank := recording.rank) is not None]

    @cached_property
    def first_row(self) -> Integers:
        return np.flatnonzero(np.diff(self.collective, prepend=-1))

    @property
    def count(self) -> int:
        return len(self.first_row)

    @cached_property
    def rows_by_rank(self) -> list[Integers]:
        order = np.argsort(self.rank_index, kind="stable")
        return np.split(order, np.cumsum(np.bincount(self.rank_index, minlength=len(self.recordings)))[:-1])

    @cached_property
    def size(self) -> Integers:
        return np.diff(np.append(self.first_row, len(self.collective)))

    def sorted_by(self, moment: Column) -> "MatchedCollectives":
        number = np.argsort(np.argsort(moment, kind="stable"), kind="stable")[self.collective]
        order = np.lexsort((self.rank_index, number))
        return MatchedCollectives(self.recordings, self.position[order], self.rank_index[order], number[order])

    def column(self, name: str) -> Integers:
        """Return one of the columns that `answers.between_collectives` computes, such as `start` or `work_ns`.

        The result has one value for each row of this table, that is for each collective and rank.
        """
        if name not in self._columns:
            parts = [recording.column(name) for recording in self.recordings]
            offset = np.cumsum([0, *(len(part) for part in parts)])
            values = np.concatenate([*parts, np.zeros(0, np.int64)])[offset[self.rank_index] + self.position]
            values.setflags(write=False)
            self._columns[name] = values
        return self._columns[name]

    def text(self, row: int, name: str) -> str:
        """Return the `name`, `group` or `dtype` of the collective in row `row` of this table, as text."""
        recording = self.recordings[self.rank_index[row]]
        number = recording.trace.columns[f"meet_{name}"][recording.rows[self.position[row]]]
        return str(recording.trace.names[number])


Members = list[tuple[int, int]]
"""The records of one collective on its ranks, each as (index of the rank, index of the collective in its recording)."""


def match_collectives(recordings: Sequence[Recording]) -> MatchedCollectives | None:
    """Return the collectives that all of their ranks recorded; None if there are none.

    A rank without a recording is ignored: its record is not required. In a recording without marked steps the first
    collective is left out, because recordings begin at different times. The result is also None if two recordings are
    of the same rank.
    """
    known = sorted((one for one in recordings if one.rank is not None), key=lambda one: one.rank or 0)
    # Two recordings of one rank (two devices, or two files of one step) would count as one participant.
    if len({one.rank for one in known}) < 2 or len({one.rank for one in known}) < len(known):
        return None
    keys = [_keys_of(one) for one in known]
    if any(NO_STEP in one.column("step") and (one.column("sequence") < 0).any() for one in known):
        keys = [keys[0], *(_counted_like(known[0], *pair) for pair in zip(known[1:], keys[1:], strict=True))]
    complete = sorted(_complete_collectives(known, keys), key=lambda entry: entry[0])
    if not complete:
        return None
    rows = [
        (position, rank, collective) for collective, (_, members) in enumerate(complete) for rank, position in members
    ]
    table = np.array(rows, np.int64)
    return MatchedCollectives(known, table[:, 0], table[:, 1], table[:, 2])


def _complete_collectives(known: Sequence[Recording], keys: Sequence[list[Key]]) -> Iterator[tuple[int, Members]]:
    """Yield (end, members) for each collective that was recorded by all of its ranks that have a recording.

    `end` is the end of the collective on one rank, in Unix ns; `members` gives the index of the collective in each
    rank's recording. `known` are the recordings; `keys` has, for each of them, the key of each of its collectives.
    Sends and receives are left out, and so are copies between devices.
    """
    # Two sends of one number are two messages: a send meets a receive, and each rank numbers its own.
    messages = [set(one.table("message", ["position"])[:, 0].tolist()) for one in known]
    members_of = defaultdict[Key, Members](list)
    for rank, rank_keys in enumerate(keys):
        for position, key in enumerate(rank_keys):
            alone = position in messages[rank] or PEER_COPY.search(key.name)
            if not alone and (position or known[rank].trace.steps):
                members_of[key].append((rank, position))
    present = {one.rank for one in known}
    ends = [one.column("end") for one in known]
    for key, members in members_of.items():
        expected = present.intersection(key.ranks) or present
        if len(members) == len(expected) > 1:
            rank, position = members[0]
            yield int(ends[rank][position]), members


def _counted_like(reference: Recording, recording: Recording, keys: list[Key]) -> list[Key]:
    """Return the keys of a recording with `order` counted as in the recording `reference`.

    The two recordings may have begun at different times. Example: rank 0 recorded all_reduces 1 to 20 of a job, rank 1
    began later and recorded 4 to 20. Counted from its own start, rank 1's first all_reduce has order 1, but it ends at
    the same time as rank 0's fourth. So 3 is added to each order of rank 1.
    """
    counted, in_reference = list(keys), _positions_by_kind(reference)
    reference_ends, ends = reference.column("end"), recording.column("end")
    for kind, positions in _positions_by_kind(recording).items():
        missed = best_shift(reference_ends[in_reference.get(kind, [])], ends[positions])
        for order, position in enumerate(positions, 1):
            if keys[position].sequence == _NO_NUMBER:
                counted[position] = keys[position]._replace(order=order + missed)
    return counted


def _positions_by_kind(recording: Recording) -> dict[Key, list[int]]:
    """Return {kind: indices of the recording's collectives of this kind}; kinds are keys that `_kinds_of` returns."""
    by_kind = defaultdict[Key, list[int]](list)
    for position, kind in enumerate(_kinds_of(recording)):
        by_kind[kind].append(position)
    return by_kind


def best_shift(ends: Integers, others: Integers) -> int:
    """Return how many of `ends` (ns) must be skipped so that the remaining ones match `others` (ns) best, pair by pair.

    A negative number means that elements of `others` must be skipped. All shifts up to `_SHIFT_AT_MOST` in both
    directions are tried; the best one has the smallest median distance of the pairs. Example: [10, 20, 30, 40] and [31,
    41] give 2.
    """

    def distance(by: int) -> tuple[float, int]:
        low, high = max(0, by), min(len(ends), len(others) + by)
        return (float(np.median(np.abs(ends[low:high] - others[low - by : high - by]))), abs(by))

    if not len(ends) or not len(others):
        return 0
    # With a shift of their whole length or more, none of them would be beside another.
    low, high = max(-_SHIFT_AT_MOST, 1 - len(others)), min(_SHIFT_AT_MOST, len(ends) - 1)
    return min(range(low, high + 1), key=distance)
