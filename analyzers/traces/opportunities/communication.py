"""Find exposed communication (during which nothing computes) that could be shorter, and the reason why it is long.

The reasons are small collectives, slow links, and no overlap with computing.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.answers.collectives import RankCollectives, bus_factor, element_bytes
from analyzers.traces.answers.idle import intervals_of_kind, subtract
from analyzers.traces.answers.launches import copy_rows
from analyzers.traces.answers.messages import RECEIVE, SEND
from analyzers.traces.columns.intervals import COMMUNICATION, COMPUTE, MEMORY, CoveredTime, merge
from analyzers.traces.columns.work import Work
from analyzers.traces.model import OpportunityKind
from analyzers.traces.reading.distinct import combined_codes, rows_by_value

_SMALL_BYTES, _SMALL_NS, _SMALL_A_STEP = 1 << 20, 60_000, 50
"""The limits below which latency decides the time of a collective, in bytes and ns, and how many per step are too many.

Merging such collectives is worth while if a step has at least SMALL_A_STEP of them.
"""
_LARGE_BYTES = 16 << 20
"""The size in bytes from which on the bandwidth of the links limits a collective, and not its latency."""
SLOW = 0.5
"""Links count as slow if a collective reaches less than this share of the expected bus bandwidth."""
_ONE_HOST = 8
_LINKS = {"B200": 680e9, "H200": 370e9, "H100 PCIe": 40e9, "H100": 370e9, "A100": 230e9, "V100": 130e9, "MI300X": 300e9}
"""{part of a device's name: bus bandwidth in bytes/s that large messages reach between the devices of one host}.

Sources: stas00/ml-engineering, network; github.com/NVIDIA/nccl-tests, issues 212 and 272.
"""
_BETWEEN_HOSTS = 40e9
"""The bus bandwidth in bytes/s that large messages reach between hosts with one 400 Gb/s port per device."""


@dataclass(frozen=True)
class ExposedCollectives:
    """The search for time to save in the exposed collectives of a device (those that do not overlap with computing).

    Arrays have an entry for each collective.
    """

    collectives: RankCollectives

    @cached_property
    def rows(self) -> Integers:
        return self.collectives.rows

    @cached_property
    def exposed(self) -> Integers:
        """For each collective, the ns during which it ran, nothing computed, and something waited for it to end.

        If several collectives run at once, the time is divided among them.
        """
        c = self.collectives.work.trace.columns
        covered = CoveredTime(*self.collectives.blocking)
        alone = covered.between(c["start"][self.rows], c["end"][self.rows])
        # Where several run at once the time is shared out, so that the sum is the time that passes.
        both = max(1, int(alone.sum()))
        return np.asarray(alone * min(1.0, covered.total / both), np.int64)

    @cached_property
    def length(self) -> Integers:
        c = self.collectives.work.trace.columns
        return np.asarray(c["end"][self.rows] - c["start"][self.rows], np.int64)

    @cached_property
    def size(self) -> Integers:
        """For each collective, the bytes of the larger of one rank's two buffers; 0 if not recorded."""
        dtype = self.collectives.dtype
        width = np.array([element_bytes(text) for text in dtype.texts], np.int64)[dtype.code]
        return np.maximum(self.collectives.sizes, 0) * width

    @cached_property
    def kind(self) -> Column:
        """For each collective, the number of its kind; a kind has one name, data type, group size and byte count."""
        labels = self.collectives.name, self.collectives.dtype
        return combined_codes(*(label.code for label in labels), self.collectives.members, self.size)

    def parts(self, steps: int) -> Iterator[tuple[OpportunityKind, Integers, dict[str, float]]]:
        """Yield (kind, ns by which each collective could be shorter, measures) for each kind of opportunity.

        `measures` is {name: value}, numbers to show with the opportunity, such as a bandwidth. No time counts for two
        kinds.
        """
        left = self.exposed
        small = self.small(steps)
        if small.any():
            yield (
                OpportunityKind.SMALL_COLLECTIVES,
                np.where(small, left, 0),
                {"bytes": float(np.median(self.size[small]))},
            )
            left = np.where(small, 0, left)
        slow, measures = self.slow()
        slow = np.minimum(slow, left)
        if slow.any():
            yield OpportunityKind.BUS_BANDWIDTH, slow, measures
            left = left - slow
        if left.any():
            yield OpportunityKind.EXPOSED_COMMUNICATION, left, {}

    def small(self, steps: int) -> Column:
        """Return a mask of the small collectives; all False unless there are at least SMALL_A_STEP of them per step."""
        small = (self.size > 0) & (self.size < _SMALL_BYTES) & (self.length < _SMALL_NS)
        return small & (int(small.sum()) >= _SMALL_A_STEP * steps)

    def slow(self) -> tuple[Integers, dict[str, float]]:
        """Return by how many ns each large collective could be shorter at the expected bandwidth, and measures to show.

        The measures, {name: value}, are the bus bandwidth of the slowest kind of collectives, the expected bandwidth,
        and the size of these collectives. The bandwidth of a kind is computed from its shortest collective, because
        this one waited least for other ranks; what others take longer is no matter of bandwidth. Kinds that reach half
        of the expected bandwidth are not shortened.
        """
        shorter, measures = np.zeros(len(self.rows), np.int64), dict[str, float]()
        for _, mine in rows_by_value(self.kind):
            first = int(mine[0])
            name = self.collectives.name.texts[self.collectives.name.code[first]]
            expected, size = self.expected(first), int(self.size[first])
            shortest = int(self.length[mine].min())
            # A receive lasts as long as its sender is late: in a pipeline each one may.
            if not expected or size < _LARGE_BYTES or not shortest or SEND.search(name) or RECEIVE.search(name):
                continue
            factor = bus_factor(name, self.members(first))
            rate = size * factor / shortest * 1e9
            if rate < SLOW * expected:
                shorter[mine] = max(shortest - round(size * factor / expected * 1e9), 0)
                if rate < measures.get("bus_bytes_per_s", np.inf):
                    measures = {"bus_bytes_per_s": rate, "expected_bytes_per_s": expected, "message_bytes": size}
        return shorter, measures

    def members(self, index: int) -> int:
        return int(self.collectives.members[index])

    def expected(self, index: int) -> float:
        """Return the bus bandwidth (bytes/s) that collective `index` should reach; 0 if the device is unknown."""
        if self.members(index) > _ONE_HOST:
            return _BETWEEN_HOSTS
        names = " ".join(self.collectives.work.trace.header.get("devices", [])[:1])
        return next((speed for name, speed in _LINKS.items() if name in names), 0.0)


def communicates(collectives: RankCollectives) -> bool:
    return bool((collectives.work.kind == COMMUNICATION).any())


_COPY_AT_LEAST_NS = 20_000
"""The shortest copy that counts: a scalar takes its latency, wherever it comes from."""
_HOST_COPY = re.compile(r"HtoD|DtoH|HostToDevice|DeviceToHost")
_PAGEABLE = re.compile("Pageable")
_UNKNOWN_MEMORY = re.compile(r"\((Host -> Device|Device -> Host)\)|HostToDevice|DeviceToHost")
"""Matches the copies of which ROCm does not say whether the host's memory is pinned."""
_PAGEABLE_BYTES_PER_S = 12e9
"""The rate up to which a large copy is assumed to come from or go to pageable memory, which reaches 3 to 12 GB/s."""
_HOST_COPIES_LARGE_BYTES = 1 << 20


def copies_between(work: Work) -> tuple[Mask, Mask]:
    """Return two masks of the events in `work`: copies from or to pageable memory of the host, and all others."""
    names = work.trace.names
    is_host, says_pageable, unknown = (
        np.array([bool(matches(name)) for name in names] or [False])[work.trace.columns["name"][work.rows]]
        for matches in (_HOST_COPY.search, _PAGEABLE.search, _UNKNOWN_MEMORY.search)
    )
    copies = is_host & (work.kind == MEMORY) & (work.own >= _COPY_AT_LEAST_NS)
    _, size = copy_rows(work)
    moved = size[work.rows]
    slow = (moved >= _HOST_COPIES_LARGE_BYTES) & (moved < _PAGEABLE_BYTES_PER_S * work.own / 1e9)
    pageable = copies & (says_pageable | (unknown & slow))
    return pageable, copies & ~pageable


def alone(work: Work, copies: Mask) -> Integers:
    """Return, for each event that `copies` selects, the ns during which it runs and nothing computes; else 0."""
    computing = intervals_of_kind(work, COMPUTE)
    covered = CoveredTime(*subtract(merge(work.start[copies], work.end[copies]), computing))
    return np.where(copies, covered.between(work.start, work.end), 0)
