"""Match the collectives of several ranks by group and sequence number, or else by their order.

Each rank records its own start and end of a collective. Matching finds, for example, the records of all ranks that
belong to one all_reduce.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.collectives import SYMMETRIC
from analyzers.traces.columns import HOST_PHASES
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
        """Return one of the columns that `messages.collective_columns` computes, such as `start` or `work_ns`.

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


# Estimate how far the clocks of the ranks are apart, from the collectives alone, with bounds of the error.
#
# A symmetric collective (all_reduce, all_gather ...) ends on all ranks at nearly the same moment: this gives an
# estimate. No rank leaves such a collective before the last rank has arrived: this gives exact bounds. Over a long
# recording clocks also drift. If the ends prove a drift, the offset is a line over time and not a single number.
#
# Example: rank 0 is in an all_reduce from 100 to 130 µs, rank 1 from 1110 to 1129 µs of its own clock. The ends show
# that rank 1's clock is 1129 - 130 = 999 µs ahead. The offset is at most 1129 - 100 = 1029 µs, else rank 1 would have
# left before rank 0 arrived. It is at least 1110 - 130 = 980 µs, else rank 0 would have left before rank 1 arrived.
# Every further collective narrows the bounds.

_POINTS_AT_LEAST, _POINTS_AT_MOST = 20, 128
# Standard deviations of Kendall's statistic that the interval of the slope spans on each side (99.7 %).
_STANDARD_DEVIATIONS = 3.0
# Crystals are off by tens of ppm and NTP slews by 500 ppm at most: more than this is a wrong match, not a drift.
_PPM_AT_MOST = 1000.0


class Drift(NamedTuple):
    """A clock's drift in parts per million (positive: the clock runs fast), and the largest likely error of the drift.

    `ppm` 1 means that the clock gains 1 µs per second.
    """

    ppm: float = 0.0
    error_ppm: float = 0.0


def drift(at: Integers, ahead: Integers) -> Drift:
    """Return how much faster a clock runs than a reference clock, given how far it was ahead at several times.

    At the time `at[i]` (ns, shown by the clock) the clock was `ahead[i]` ns ahead of the reference. The drift is zero
    unless these points prove one: both halves of the recording must show the same slope (after a jump of the clock one
    half shows none), and over the whole recording the slope must change the difference by more than the scatter of
    single points.

    Example: a clock that is 1.0 ms ahead at first, 1.2 ms after 10 s and 1.4 ms after 20 s gains 0.2 ms in 10 s: the
    drift is 20 ppm. In 20 s the difference changes by 0.4 ms. If single points were more than 0.4 ms off this line, the
    result would be no drift.
    """
    at, ahead = thinned(at, ahead)
    if len(at) < _POINTS_AT_LEAST:
        return Drift()
    half = len(at) // 2
    low, high = _slope_interval(at, ahead)
    ppm = (low + high) / 2
    halves = [_slope_interval(at[part], ahead[part]) for part in (slice(half), slice(half, None))]
    # Each interval excludes 0, and both halves overlap the whole: a jump gives one of the halves no slope at all.
    consistent = low * high > 0 and all(first <= high and low <= last and first * last > 0 for first, last in halves)
    gain = abs(ppm) * 1e-6 * int(at[-1] - at[0])
    if not consistent or abs(ppm) > _PPM_AT_MOST or gain <= scatter(at, ahead, ppm):
        return Drift()
    return Drift(ppm, (high - low) / 2)


def thinned(at: Integers, ahead: Integers) -> tuple[Integers, Integers]:
    """Return at most POINTS_AT_MOST points (`at`, `ahead`) in order of time.

    In a point, `ahead` is by how many ns a clock was ahead when it showed the time `at` (ns). If there are too many
    points, neighbours are grouped, and the medians of a group replace its points.
    """
    order = np.argsort(at, kind="stable")
    at, ahead = at[order], ahead[order]
    if len(at) <= _POINTS_AT_MOST:
        return at, ahead
    # All pairs are compared, so the cost grows with the square of the number of points.
    runs = np.array_split(np.arange(len(at)), _POINTS_AT_MOST)
    at, ahead = (np.array([int(np.median(values[run])) for run in runs]) for values in (at, ahead))
    return at, ahead


def _slope_interval(at: Integers, ahead: Integers) -> tuple[float, float]:
    """Return the lower and upper bound of the slope of the points (`at`, `ahead`), in ppm.

    The slopes between all pairs of points are sorted. Their median is the Theil-Sen estimate of the slope. The bounds
    are two other slopes of the sorted list, equally many positions below and above the median (Sen, 1968). The number
    of positions follows from Kendall's statistic: for n points without a trend its variance is n (n - 1) (2 n + 5) /
    18. Both bounds are 0 if all points have the same time.
    """
    first, second = np.triu_indices(len(at), 1)
    passed = at[second] - at[first]
    slopes = np.sort((ahead[second] - ahead[first])[passed > 0] / passed[passed > 0])
    if not len(slopes):
        return 0.0, 0.0
    n = len(at)
    reach = _STANDARD_DEVIATIONS * np.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    low, high = ((len(slopes) + sign * reach) / 2 for sign in (-1, 1))
    bounds = np.clip([round(low), round(high) - 1], 0, len(slopes) - 1)
    return float(slopes[bounds[0]] * 1e6), float(slopes[bounds[1]] * 1e6)


def scatter(at: Integers, ahead: Integers, ppm: float = 0.0) -> int:
    """Return the median distance of the points (`at`, `ahead`) from a line with the slope `ppm`, in ns.

    In a point, `ahead` is by how many ns a clock was ahead when it showed the time `at` (ns). The line is placed so
    that half of the points lie above it.
    """
    rest = ahead - ppm * 1e-6 * (at - at[0])
    return round(float(np.median(np.abs(rest - np.median(rest)))))


class Clock(msgspec.Struct, frozen=True, kw_only=True):
    """The offset of one rank's clock: by how many ns it is ahead of the clock of the first rank.

    The offset is `offset_ns`, and lies between `low_ns` and `high_ns`. It is the offset when the rank's clock shows
    `at_ns` (Unix time in ns); after that it grows by `drift_ppm` parts per million, with a likely error of at most
    `drift_error_ppm`. It was computed from the ends of `collectives` shared collectives; `residual_ns` is the median
    distance of the ends from this line.

    If `same_host` is true, both ranks read the clock of one host, and offset and drift are 0. `estimate_ns` is then, as
    a check, the offset that the collectives alone would give. If no chain of shared collectives connects the two ranks,
    the bounds are None and the offset is 0.
    """

    rank: int
    offset_ns: int = 0
    estimate_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    collectives: int = 0
    same_host: bool = False
    drift_ppm: float = 0.0
    drift_error_ppm: float = 0.0
    residual_ns: int | None = None
    at_ns: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the bounds of the offset are known, and the lower one is not above the upper one."""
        return self.low_ns is not None and self.high_ns is not None and self.low_ns <= self.high_ns

    def ahead(self, at: Column) -> Integers:
        """Return by how many ns this clock is ahead of the first rank's when it shows the times `at` (Unix ns)."""
        return self.offset_ns + _clock_gain(at - self.at_ns, self.drift_ppm)

    def shows(self, at: Column) -> Integers:
        """Return the times that this clock shows (Unix ns) when the first rank's clock shows the times `at` (Unix ns).

        This is the inverse of subtracting `ahead`: for each result t, `t - ahead(t)` is `at`.
        """
        steady = at + self.offset_ns
        return steady + _clock_gain(steady - self.at_ns, self.drift_ppm / (1 - self.drift_ppm * 1e-6))


@dataclass(frozen=True)
class SharedCollectives:
    """The start and end times (ns) of the symmetric collectives that two ranks both recorded.

    The clock of the second rank is being measured: `other_start` and `other_end` are times of this clock. `start` and
    `end` are the times on the first of the two ranks, already converted to the clock of the job's first rank. `steady`
    means that both ranks read the same clock, so that it cannot drift.
    """

    start: Integers
    end: Integers
    other_start: Integers
    other_end: Integers
    steady: bool = False

    @property
    def middle(self) -> int:
        return int(self.other_end.min() + (self.other_end.max() - self.other_end.min()) // 2)

    @cached_property
    def drift(self) -> Drift:
        return Drift() if self.steady else drift(self.other_end, self.other_end - self.end)

    @property
    def residual(self) -> int:
        return scatter(self.other_end, self.other_end - self.end, self.drift.ppm)

    def without_drift(self, at: Integers) -> Integers:
        """Return times of the measured clock (ns), corrected for its drift.

        The result is what the clock would show if it ran as fast as the first rank's clock. At `middle` nothing
        changes.
        """
        return at - _clock_gain(at - self.middle, self.drift.ppm)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The smallest and the largest possible offset of the measured clock, in ns ahead of the first rank's clock.

        The bounds follow from the fact that no rank leaves a collective before the last rank arrives.
        """
        low = self.without_drift(self.other_start) - self.end
        high = self.without_drift(self.other_end) - self.start
        return int(low.max()), int(high.min())

    @property
    def estimate(self) -> int:
        """The estimated offset of the measured clock, in ns ahead of the first rank's clock.

        It is the median difference between the ends of the collectives in the two clocks, limited to `bounds`.
        """
        low, high = self.bounds
        middle = int(np.median(self.without_drift(self.other_end) - self.end))
        return min(max(middle, low), high) if low <= high else middle


def _clock_gain(passed: Column, ppm: float) -> Integers:
    gain: Integers = np.rint(passed * (ppm * 1e-6)).astype(np.int64)
    return gain


def clocks(matched: MatchedCollectives) -> list[Clock]:
    """Return a `Clock` for each rank, which says by how much its clock is ahead of the first rank's.

    A rank that shares no collective with the first rank is compared with it through other ranks.
    """
    known = {0: Clock(rank=matched.ranks[0], estimate_ns=0, low_ns=0, high_ns=0, same_host=True)}
    start, end, symmetric = matched.column("start"), matched.column("end"), _is_symmetric(matched)
    # Breadth first, so that each rank is reached over as few others as possible: the bounds of a chain add up.
    pending = [0]
    while pending:
        near = pending.pop(0)
        for far in _met_by(matched, near):
            if far in known:
                continue
            shared = _shared_collectives(matched, (start, end, symmetric), (near, far), known[near])
            if shared:
                known[far] = _clock_of(matched.recordings, known[near], (near, far), shared)
                pending.append(far)
    return [known.get(i) or Clock(rank=rank) for i, rank in enumerate(matched.ranks)]


def _met_by(matched: MatchedCollectives, near: int) -> list[int]:
    """Return the indices of the ranks that share a collective with the rank of index `near`, in ascending order."""
    met = np.zeros(matched.count, bool)
    met[matched.collective[matched.rows_by_rank[near]]] = True
    first, size = matched.first_row[met], matched.size[met]
    rows = np.repeat(first - np.cumsum(size) + size, size) + np.arange(size.sum())
    indices: list[int] = np.unique(matched.rank_index[rows]).tolist()
    return indices


def _is_symmetric(matched: MatchedCollectives) -> Mask:
    """Return a mask of the rows of `matched` whose collective ends on all ranks at nearly the same time.

    This is so for an all_reduce, but not for a broadcast.
    """
    names = [SYMMETRIC.search(matched.text(int(row), "name")) is not None for row in matched.first_row]
    return np.array(names, bool)[matched.collective]


def _shared_collectives(
    matched: MatchedCollectives, columns: tuple[Integers, Integers, Mask], indices: tuple[int, int], clock: Clock
) -> SharedCollectives | None:
    """Return the symmetric collectives that two ranks both took part in; None if there are none.

    `columns` has, for each row of `matched`, the start and the end of the collective on that rank, and whether it
    `_is_symmetric`. `indices` are the indices of the two ranks in `matched.ranks`; `clock` belongs to the first of
    these two ranks.
    """
    start, end, symmetric = columns
    mine, theirs = (rows[symmetric[rows]] for rows in (matched.rows_by_rank[index] for index in indices))
    _, i, j = np.intersect1d(
        matched.collective[mine], matched.collective[theirs], assume_unique=True, return_indices=True
    )
    if not len(i):
        return None
    mine, theirs = mine[i], theirs[j]
    starts, ends = (column[mine] - clock.ahead(column[mine]) for column in (start, end))
    return SharedCollectives(starts, ends, start[theirs], end[theirs])


def _clock_of(
    recordings: Sequence[Recording], near_clock: Clock, indices: tuple[int, int], shared: SharedCollectives
) -> Clock:
    """Return the `Clock` of the second of two ranks, computed from the collectives that both took part in (`shared`).

    `indices` are the indices of the two ranks in `recordings`. `near_clock` is the clock of the first of the two, known
    already: its bounds are added to those between the two ranks.
    """
    near, far = (recordings[index] for index in indices)
    host = near.trace.header.get("host")
    same_host = near_clock.same_host and host is not None and host == far.trace.header.get("host")
    shared = replace(shared, steady=same_host)
    low, high = shared.bounds
    return Clock(
        rank=far.rank or 0,
        offset_ns=0 if same_host else shared.estimate,
        estimate_ns=shared.estimate,
        # What is not known of the nearer clock is not known of this one either.
        low_ns=low + (near_clock.low_ns or 0) - near_clock.offset_ns,
        high_ns=high + (near_clock.high_ns or 0) - near_clock.offset_ns,
        collectives=len(shared.end),
        same_host=same_host,
        drift_ppm=round(shared.drift.ppm, 6),
        drift_error_ppm=round(shared.drift.error_ppm, 6),
        residual_ns=shared.residual,
        at_ns=shared.middle,
    )
