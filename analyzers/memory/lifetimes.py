"""Compute the reserved bytes after each trace entry, and find requests for which the allocator released segments."""

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.memory.model import Retry
from analyzers.memory.snapshot import RESERVING, RETURNING, UNTAGGED, Action, BlockState, DeviceTrace


def reserved_bytes(trace: DeviceTrace) -> Integers:
    """Return the bytes that the allocator has reserved on the device after each trace entry.

    They are computed backwards from the segments in the snapshot, because the value before the first trace entry is
    not recorded.
    """
    action = trace.entry("action")
    sign = np.isin(action, RESERVING).astype(np.int64) - np.isin(action, RETURNING)
    change = np.cumsum(sign * trace.entry("size"))
    return change + (trace.reserved_bytes - (change[-1] if len(change) else 0))


def retries(trace: DeviceTrace) -> list[Retry]:
    """Return the requests for which the allocator first released cached segments; they succeeded or ended in an OOM.

    They are recognised by their stacks: the allocator records the `segment_free` entries with the same stack as the
    `segment_alloc` or `oom` that follows. The entries of `torch.cuda.empty_cache` have a different stack.
    """
    action, stack = trace.entry("action"), trace.entry("stack")
    request = np.flatnonzero(np.isin(action, (Action.SEGMENT_ALLOC, Action.OOM)))
    request = request[request > 0]
    previous = request - 1
    after_free = (action[previous] == Action.SEGMENT_FREE) & (stack[previous] == stack[request]) & (stack[request] != 0)
    return [Retry(index=index, freed_bytes=_freed_before(trace, index)) for index in request[after_free].tolist()]


def _freed_before(trace: DeviceTrace, index: int) -> int:
    others = np.flatnonzero(trace.entry("action")[:index] != Action.SEGMENT_FREE)
    start = int(others[-1]) + 1 if len(others) else 0
    return int(trace.entry("size")[start:index].sum())


# Compute the trace entries that allocated and freed each block, and from them the bytes allocated after each entry.
#
# The result is exact even if the ring buffer lost the oldest entries of the trace. Worked example, addresses A to D:
#
#     entry 0  alloc A 100    paired with entry 2: alive after entries 0 and 1
#     entry 1  alloc B  50    never freed: alive to the end
#     entry 2  free  A 100
#     entry 3  free  C  30    no alloc before it: C is older than the trace, alive until entry 3
#     blocks at the snapshot: B 50, D 20    no entry allocated D: it is older than the trace too, and alive to the end
#
# So 30 + 20 = 50 bytes were allocated before entry 0, and 150, 200, 100 and 70 bytes after the four entries. 70 is
# also the sum of the blocks in the snapshot (50 + 20): the replay is consistent.

BEFORE = -1
"""The value of `Lifetimes.born` for blocks that were allocated before the first trace entry."""


@dataclass(frozen=True)
class Lifetimes:
    """The lifetime of each block that ever lived, a row per block; alive after trace entry k means `born <= k < died`.

    `born` is the index of the trace entry that allocated the block, -1 if this happened before the trace. `died` is the
    index of the entry that freed it, or the number of entries if it is alive at the end. `size` is in requested bytes.
    `stack` is the stack that allocated the block. For a block that is older than the trace only the stack that freed it
    may be known; `freed_stack` is then true. `category` (`UNTAGGED` if none) and `label` were written by the recorder.
    """

    born: Integers
    died: Integers
    addr: Column
    size: Integers
    stack: Integers
    category: Column
    label: Integers
    freed_stack: Mask

    def alive(self, index: int) -> Integers:
        return np.flatnonzero((self.born <= index) & (self.died > index))

    @cached_property
    def allocating_stack(self) -> Integers:
        return np.where(self.freed_stack, 0, self.stack).astype(np.int64)

    def containing(self, address: int) -> Mask:
        """Return a mask of the blocks that contain an address; a block of 0 bytes contains only its start address."""
        wanted, extent = np.uint64(address), np.maximum(self.size, 1).astype(np.uint64)
        # Compare offsets, not ends: the end of a block near 2**64 would overflow.
        inside: Mask = (self.addr <= wanted) & (wanted - self.addr < extent)
        return inside


@dataclass(frozen=True)
class Replay:
    """The memory of one device over its trace: each block's lifetime, and the live bytes after each trace entry.

    Live bytes are the requested bytes of the blocks that are allocated at that point.
    """

    trace: DeviceTrace

    @cached_property
    def lifetimes(self) -> Lifetimes:
        return _stored_lifetimes(self.trace) if self.trace.is_digested else _compute_lifetimes(self.trace)

    @cached_property
    def start(self) -> int:
        """The live bytes before the first trace entry."""
        return int(self.lifetimes.size[self.lifetimes.born == BEFORE].sum())

    @cached_property
    def live_bytes(self) -> Integers:
        if self.trace.is_digested:
            return self.trace.entry("live_bytes")
        return self.start + np.cumsum(self.changes)

    @cached_property
    def changes(self) -> Integers:
        """The bytes that each trace entry adds to the live bytes: negative for a free, 0 for other entries."""
        action = self.trace.entry("action")
        sign = (action == Action.ALLOC).astype(np.int64) - (action == Action.FREE_COMPLETED)
        changes: Integers = sign * self.trace.entry("size")
        return changes

    @cached_property
    def peak(self) -> tuple[int, int]:
        """The highest live bytes, and the index of the first trace entry after which they are reached.

        The index is -1 if the live bytes never exceed the bytes before the trace.
        """
        if not len(self.live_bytes) or self.live_bytes.max() <= self.start:
            return self.start, BEFORE
        index = int(self.live_bytes.argmax())
        return int(self.live_bytes[index]), index

    @property
    def end(self) -> int:
        return int(self.live_bytes[-1]) if len(self.live_bytes) else self.start

    @cached_property
    def pending_bytes(self) -> Integers:
        """The part of `live_bytes` in blocks that the program freed but a CUDA stream may still use.

        There is one value per trace entry; all are 0 if the trace does not record when frees are requested.
        """
        action = self.trace.entry("action")
        sign = (action == Action.FREE_REQUESTED).astype(np.int64) - (action == Action.FREE_COMPLETED)
        if not (sign > 0).any():
            # A recorder may leave the requests out: then nothing is known to wait.
            return np.zeros(len(action), np.int64)
        waiting = np.cumsum(sign * self.trace.entry("size"))
        # As with reserved bytes, the snapshot fixes the end of the curve: the trace does not know its start.
        curve: Integers = np.maximum(waiting + self.pending_at_end - waiting[-1], 0)
        return np.minimum(curve, self.live_bytes)

    @cached_property
    def pending_at_end(self) -> int:
        """The bytes of the blocks in the snapshot that the program freed, but that a CUDA stream may still use."""
        return int(self.trace.block("requested")[self.trace.block("state") == BlockState.PENDING_FREE].sum())

    @cached_property
    def reserved(self) -> Integers:
        return reserved_bytes(self.trace)

    @cached_property
    def active_bytes(self) -> int:
        return int(self.trace.block("requested")[self.trace.block("state") != BlockState.INACTIVE].sum())

    @property
    def consistent(self) -> bool:
        """Whether the live bytes after the last trace entry equal the bytes of the blocks in use in the snapshot."""
        return self.end == self.active_bytes


def _stored_lifetimes(trace: DeviceTrace) -> Lifetimes:
    return Lifetimes(**{column.name: trace.lifetime(column.name) for column in fields(Lifetimes)})


def _compute_lifetimes(trace: DeviceTrace) -> Lifetimes:
    pairs, alive, older = _pair_allocs_with_frees(trace.entry("action"), trace.entry("addr"))
    untraced = _untraced_blocks(trace, alive)
    column = {name: trace.entry(name) for name in ("addr", "size", "stack", "category", "label")}
    allocs = np.concatenate([pairs[:, 0], alive])
    category, label = _tags_of_older_blocks(
        trace, np.concatenate([column["addr"][older], _block_addr(trace, untraced)])
    )
    count, older_count = len(trace), len(older) + len(untraced)
    return Lifetimes(
        born=np.concatenate([allocs, np.full(older_count, BEFORE)]),
        died=np.concatenate([pairs[:, 1], np.full(len(alive), count), older, np.full(len(untraced), count)]),
        addr=np.concatenate([column["addr"][allocs], column["addr"][older], _block_addr(trace, untraced)]),
        size=np.concatenate([column["size"][allocs], column["size"][older], trace.block("requested")[untraced]]),
        stack=np.concatenate([column["stack"][allocs], column["stack"][older], trace.block("stack")[untraced]]),
        category=np.concatenate([column["category"][allocs], category]),
        label=np.concatenate([column["label"][allocs], label]),
        freed_stack=np.repeat([False, True, False], [len(allocs), len(older), len(untraced)]),
    )


def _block_addr(trace: DeviceTrace, blocks: Integers) -> Column:
    return trace.block("address")[blocks]


def _pair_allocs_with_frees(action: Column, addr: Column) -> tuple[Integers, Integers, Integers]:
    """Return three arrays of trace entry indexes: (alloc, free) pairs, allocs never freed, frees without an alloc.

    A free without an alloc frees a block that is older than the trace. Addresses are reused, so the entries are sorted
    by address and then by time: an alloc directly followed by a free of the same address is one block. If two allocs of
    one address follow each other (in an edited file), the first counts as never freed.
    """
    event = np.flatnonzero((action == Action.ALLOC) | (action == Action.FREE_COMPLETED))
    event = event[np.argsort(addr[event], kind="stable")]  # stable: entries of one address stay in order of time
    is_alloc, address = action[event] == Action.ALLOC, addr[event]
    pair = is_alloc[:-1] & ~is_alloc[1:] & (address[:-1] == address[1:])
    opens, closes = np.append(pair, False)[: len(event)], np.insert(pair, 0, False)[: len(event)]
    pairs = np.stack([event[opens], event[closes]], axis=1)
    return pairs, np.sort(event[is_alloc & ~opens]), np.sort(event[~is_alloc & ~closes])


def _untraced_blocks(trace: DeviceTrace, alive: Integers) -> Integers:
    """Return the blocks in use in the snapshot that no trace entry allocated, as indexes in `trace.blocks`.

    `alive` has the indexes of the trace entries whose allocations were never freed.
    """
    traced = np.isin(trace.block("address"), trace.entry("addr")[alive])
    return np.flatnonzero((trace.block("state") != BlockState.INACTIVE) & ~traced)


def _tags_of_older_blocks(trace: DeviceTrace, addresses: Column) -> tuple[Column, Column]:
    """Return the category and the label that this project's recorder wrote for the block at each of `addresses`.

    These blocks are older than the trace, so their tags are not in trace entries. Without a tag the category is
    `UNTAGGED` and the label 0.
    """
    c = trace.snapshot.columns
    order = np.argsort(c["older_addr"], kind="stable")
    tagged = c["older_addr"][order]
    if not len(tagged):
        return np.full(len(addresses), UNTAGGED, np.int8), np.zeros(len(addresses), np.int32)
    position = np.minimum(np.searchsorted(tagged, addresses), len(tagged) - 1)
    hit = tagged[position] == addresses
    category = np.where(hit, c["older_category"][order][position], UNTAGGED)
    return category, np.where(hit, c["older_label"][order][position], 0)
