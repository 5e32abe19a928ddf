"""Where blocks lie: the stream and the pool of each, and what every one of these held over time."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.memory.model import DeviceTrace, Pool, StreamUse
from analyzers.memory.reading.interning import Places
from analyzers.memory.replay.lifetimes import BEFORE, Replay

POOLS_AT_MOST = 32
UNTOLD = "?"
"""The pool of what lay in segments that are gone, where the entries do not say it (before torch 2.12)."""


@dataclass(frozen=True)
class Part:
    """What one group of blocks held: at the start, and `live` bytes after each of its own `entries`."""

    start: int
    entries: Column
    live: Column

    @property
    def peak(self) -> tuple[int, int]:
        """The most it held, and the first entry after which it did (-1: before the first)."""
        if not len(self.live) or self.live.max() <= self.start:
            return self.start, BEFORE
        at = int(self.live.argmax())
        return int(self.live[at]), int(self.entries[at])

    @property
    def end(self) -> int:
        return int(self.live[-1]) if len(self.live) else self.start

    def after(self, instants: Column) -> Column:
        """The bytes held after each of some entries."""
        held = np.concatenate([[self.start], self.live])
        found: Column = held[np.searchsorted(self.entries, instants, side="right")]
        return found


@dataclass(frozen=True)
class Placed:
    """The blocks of one device by place, a place being a row of `place_stream` and `place_pool`."""

    replay: Replay

    @cached_property
    def of_life(self) -> Column:
        """The place of each block that ever lived."""
        trace = self.replay.trace
        if trace.digested:
            return trace.life("place")
        lives, told = self.replay.lifetimes, trace.entry("place")
        entry = np.where(lives.born != BEFORE, lives.born, lives.died)  # where older blocks were freed tells as much
        known = entry < len(told)
        place = np.full(len(entry), -1, np.int32)
        place[known] = told[entry[known]]
        lacks = np.ones(len(place), bool)
        lacks[known] = self.pools[place[known], 0] == Places.UNTOLD[0]
        around = segment_around(trace, lives.addr)
        found = lacks & (around >= 0)
        place[found] = trace.snapshot.columns["segment_place"][around[found]]
        return place

    @property
    def pools(self) -> Column:
        return self.replay.trace.snapshot.columns["place_pool"]

    @property
    def streams(self) -> Column:
        return self.replay.trace.snapshot.columns["place_stream"]

    def named(self, by: str) -> Column:
        """The name of each place's pool or stream."""
        if by == "stream":
            return np.array([f"stream {stream}" for stream in self.streams.tolist()], object)
        return np.array([pool_name(*pool) for pool in self.pools.tolist()], object)

    @cached_property
    def of_entry(self) -> Column:
        """The place of the block that each entry allocates or frees; -1 for other entries."""
        if self.replay.trace.digested:
            return self.replay.trace.entry("held_place")
        lives, count = self.replay.lifetimes, len(self.replay.trace)
        place = np.full(count + 1, -1, np.int32)
        place[lives.died] = self.of_life
        inside = lives.born != BEFORE
        place[lives.born[inside]] = self.of_life[inside]
        return place[:count]  # those alive at the end have left theirs behind it

    def part(self, places: Column) -> Part:
        """What the blocks in some places held."""
        lives = self.replay.lifetimes
        wanted = np.zeros(len(self.streams) + 1, bool)  # the last one is for -1
        wanted[places] = True
        entries = np.flatnonzero(wanted[self.of_entry])
        older = (lives.born == BEFORE) & wanted[self.of_life]
        start = int(lives.size[older].sum())
        return Part(start, entries, start + np.cumsum(self.replay.changes[entries]))


def pool_name(first: int, second: int) -> str:
    return UNTOLD if (first, second) == Places.UNTOLD else f"{first}.{second}"


def segment_around(trace: DeviceTrace, addresses: Column) -> Column:
    """The number of the segment at the end around each address; -1 where there is none."""
    c = trace.snapshot.columns
    order = trace.segments[np.argsort(c["segment_address"][trace.segments], kind="stable")]
    if not len(order):
        return np.full(len(addresses), -1)
    place = np.searchsorted(c["segment_address"][order], addresses, side="right") - 1
    segment = order[np.maximum(place, 0)]
    inside = (place >= 0) & (addresses - c["segment_address"][segment] < c["segment_total"][segment].astype(np.uint64))
    return np.where(inside, segment, -1)


def streams(placed: Placed) -> list[StreamUse]:
    """What was allocated on each stream, the one with the highest peak first."""
    found = []
    for stream in np.unique(placed.streams[used(placed)]).tolist():
        part = placed.part(np.flatnonzero(placed.streams == stream))
        peak, index = part.peak
        found.append(
            StreamUse(stream=stream, start_bytes=part.start, peak_bytes=peak, peak_index=index, end_bytes=part.end)
        )
    return sorted(found, key=lambda use: (-use.peak_bytes, use.stream))[:POOLS_AT_MOST]


def pools(placed: Placed) -> list[Pool]:
    """Each (pool, stream) that has segments at the end or had blocks, the most reserved first."""
    found = list(each_pool(placed))
    return sorted(found, key=lambda pool: (-pool.reserved_bytes, pool.pool, pool.stream))[:POOLS_AT_MOST]


def used(placed: Placed) -> Column:
    """The places of this device's segments and blocks: those with the most bytes, as a file may name a million."""
    trace, c, lives = placed.replay.trace, placed.replay.trace.snapshot.columns, placed.replay.lifetimes
    place = np.concatenate([c["segment_place"][trace.segments], placed.of_life])
    size = np.concatenate([c["segment_total"][trace.segments], lives.size])
    held = np.bincount(place + 1, size, len(placed.streams) + 1)[1:]  # the first is for -1
    known = np.flatnonzero(np.bincount(place + 1, minlength=len(held) + 1)[1:])
    return known[np.argsort(-held[known], kind="stable")][:POOLS_AT_MOST]


def each_pool(placed: Placed) -> Iterator[Pool]:
    trace, c = placed.replay.trace, placed.replay.trace.snapshot.columns
    active = trace.block("state") > 0
    for place in used(placed):
        rows = trace.segments[c["segment_place"][trace.segments] == place]
        part = placed.part(np.array([place]))
        peak, index = part.peak
        yield Pool(
            pool=pool_name(*placed.pools[place].tolist()),
            stream=int(placed.streams[place]),
            segments=len(rows),
            reserved_bytes=int(c["segment_total"][rows].sum()),
            allocated_bytes=int(trace.block("size")[active & np.isin(trace.block("segment"), rows)].sum()),
            start_bytes=part.start,
            peak_bytes=peak,
            peak_index=index,
            end_bytes=part.end,
        )
