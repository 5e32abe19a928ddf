"""How much was allocated after each entry, exact also where the trace begins late."""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from analyzers.columns import Column
from analyzers.memory.model import DeviceTrace
from analyzers.memory.reading.reader import ACTION_OF, UNTAGGED
from analyzers.memory.replay.reserved import reserved

ALLOC, FREE = ACTION_OF["alloc"], ACTION_OF["free_completed"]
BEFORE = -1
PENDING = 2


@dataclass(frozen=True)
class Lifetimes:
    """One row a block: alive after entry k if `born <= k < died`.

    `born` is -1 for blocks older than the trace, `died` the number of entries for those alive at its end. `stack` is
    where it was allocated, but where it was freed for an older block that died (`freed_stack`).
    """

    born: Column
    died: Column
    addr: Column
    size: Column
    stack: Column
    category: Column
    label: Column
    freed_stack: Column

    def alive(self, index: int) -> Column:
        """The rows alive after entry `index`."""
        return np.flatnonzero((self.born <= index) & (self.died > index))


@dataclass(frozen=True)
class Replay:
    """The allocated bytes of one device over its trace."""

    trace: DeviceTrace

    @cached_property
    def lifetimes(self) -> Lifetimes:
        return stored(self.trace) if self.trace.digested else followed(self.trace)

    @cached_property
    def start(self) -> int:
        """Bytes alive before the first entry."""
        return int(self.lifetimes.size[self.lifetimes.born == BEFORE].sum())

    @cached_property
    def live(self) -> Column:
        """Bytes alive after each entry."""
        if self.trace.digested:
            return self.trace.entry("live")
        return self.start + np.cumsum(self.changes)

    @cached_property
    def changes(self) -> Column:
        """The bytes that each entry adds or takes away."""
        action = self.trace.entry("action")
        sign: Column = (action == ALLOC).astype(np.int64) - (action == FREE)
        return sign * self.trace.entry("size")

    @cached_property
    def peak(self) -> tuple[int, int]:
        """The highest allocated bytes, and the first entry after which they are reached (-1: before the first)."""
        if not len(self.live) or self.live.max() <= self.start:
            return self.start, BEFORE
        index = int(self.live.argmax())
        return int(self.live[index]), index

    @property
    def end(self) -> int:
        """Bytes alive after the last entry."""
        return int(self.live[-1]) if len(self.live) else self.start

    @cached_property
    def pending(self) -> Column:
        """The part of `live` after each entry whose release was asked for and waits for a stream."""
        action, trace = self.trace.entry("action"), self.trace
        sign = (action == ACTION_OF["free_requested"]).astype(np.int64) - (action == FREE)
        waiting = np.cumsum(sign * trace.entry("size"))
        at_end = int(trace.block("requested")[trace.block("state") == PENDING].sum())
        # A recorder may leave the requests out: then nothing is known to wait.
        curve: Column = np.maximum(waiting + at_end - (waiting[-1] if len(waiting) else 0), 0)
        return np.minimum(curve, self.live) if (sign > 0).any() else np.zeros(len(action), np.int64)

    @cached_property
    def reserved(self) -> Column:
        """Reserved bytes after each entry."""
        return reserved(self.trace)

    @cached_property
    def active_bytes(self) -> int:
        """What the snapshot's own blocks say is alive at the end."""
        return int(self.trace.block("requested")[self.trace.block("state") > 0].sum())

    @property
    def consistent(self) -> bool:
        return self.end == self.active_bytes


def stored(trace: DeviceTrace) -> Lifetimes:
    """The lifetimes that were found when the file was read."""
    return Lifetimes(**{column.name: trace.life(column.name) for column in fields(Lifetimes)})


def followed(trace: DeviceTrace) -> Lifetimes:
    """The lifetimes that the entries and the blocks at the end tell."""
    pairs, alive, older = match(trace.entry("action"), trace.entry("addr"))
    ghosts = ghosts_of(trace, alive)
    column = {name: trace.entry(name) for name in ("addr", "size", "stack", "category", "label")}
    allocs = np.concatenate([pairs[:, 0], alive])
    noted = older_tags(trace, np.concatenate([column["addr"][older], trace.block("address")[ghosts]]))
    count, known, late = len(trace), len(allocs), len(older) + len(ghosts)
    return Lifetimes(
        born=np.concatenate([allocs, np.full(late, BEFORE)]),
        died=np.concatenate([pairs[:, 1], np.full(len(alive), count), older, np.full(len(ghosts), count)]),
        addr=np.concatenate([column["addr"][allocs], column["addr"][older], trace.block("address")[ghosts]]),
        size=np.concatenate([column["size"][allocs], column["size"][older], trace.block("requested")[ghosts]]),
        stack=np.concatenate([column["stack"][allocs], column["stack"][older], trace.block("stack")[ghosts]]),
        category=np.concatenate([column["category"][allocs], noted[0]]),
        label=np.concatenate([column["label"][allocs], noted[1]]),
        freed_stack=np.repeat([False, True, False], [known, len(older), len(ghosts)]),
    )


def match(action: Column, addr: Column) -> tuple[Column, Column, Column]:
    """Pairs (alloc, free) of entries, allocs never freed, and frees of blocks that are older than the trace."""
    event = np.flatnonzero((action == ALLOC) | (action == FREE))
    event = event[np.argsort(addr[event], kind="stable")]  # by address, then by time
    is_alloc, place = action[event] == ALLOC, addr[event]
    pair = is_alloc[:-1] & ~is_alloc[1:] & (place[:-1] == place[1:])
    opens, closes = np.append(pair, False)[: len(event)], np.insert(pair, 0, False)[: len(event)]
    pairs = np.stack([event[opens], event[closes]], axis=1)
    return pairs, np.sort(event[is_alloc & ~opens]), np.sort(event[~is_alloc & ~closes])


def ghosts_of(trace: DeviceTrace, alive: Column) -> Column:
    """The active blocks (as positions in `trace.blocks`) that no entry of the trace allocated."""
    known = np.isin(trace.block("address"), trace.entry("addr")[alive])
    return np.flatnonzero((trace.block("state") > 0) & ~known)


def older_tags(trace: DeviceTrace, addresses: Column) -> tuple[Column, Column]:
    """Category and label that the recorder noted for blocks older than the trace."""
    c = trace.snapshot.columns
    order = np.argsort(c["older_addr"], kind="stable")
    noted = c["older_addr"][order]
    if not len(noted):
        return np.full(len(addresses), UNTAGGED, np.int8), np.zeros(len(addresses), np.int32)
    place = np.minimum(np.searchsorted(noted, addresses), len(noted) - 1)
    hit = noted[place] == addresses
    return np.where(hit, c["older_category"][order][place], UNTAGGED), np.where(hit, c["older_label"][order][place], 0)
