"""A history of the CPU's memory: which blocks live, what happened of late, in the schema of PyTorch's snapshots."""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from workbench.recorders.memory.block_categories import Block, Roles
from workbench.recorders.memory.profiler_events import Allocation, Frame, Session
from workbench.recorders.memory.tensor_hooks import UNKNOWN, Note

GRAIN = 2 << 20


class Event(NamedTuple):
    """What happened to a block."""

    action: str
    time_us: int
    block: Block
    frames: list[Frame]


class Ledger(Roles):
    """Live blocks and the events of the last `keep` sessions."""

    def __init__(self, keep: int) -> None:
        super().__init__()
        self.lost_notes = 0
        self._sessions: deque[list[Event]] = deque(maxlen=keep)

    def adopt(self, tensors: Iterable[tuple[torch.Tensor, str, str]]) -> None:
        """Enter tensors that were there before anything was recorded."""
        for tensor, category, label in tensors:
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if address and address not in self.live:
                self.live[address] = Block(address, storage.nbytes(), [], category, label)

    def enter(self, session: Session, notes: list[Note]) -> None:
        """Enter what a session has seen, and what was noted during it."""
        self._sessions.append([])
        self.start()
        happened: Iterator[Allocation | Note] = merge(session.allocations, notes, key=lambda found: found.time_ns)
        for found in happened:
            if isinstance(found, Note):
                self.lost_notes += not self.heed(found)
            elif found.size > 0:
                self._allocate(found)
            else:
                self._free(found)
        self._evict_transfers()
        self._evict_overlapped()

    def events(self) -> Iterator[Event]:
        """All events that are kept, in order of time."""
        for session in self._sessions:
            yield from session

    def _allocate(self, found: Allocation) -> None:
        if unseen := self.live.pop(found.address, None):
            self._log("free_completed", found.time_ns, unseen, [])
        block = self.allocated(found.address, found.size, found.frames)
        self._log("alloc", found.time_ns, block, found.frames)

    def _free(self, found: Allocation) -> None:
        block = self.live.pop(found.address, None) or Block(found.address, -found.size, [], UNKNOWN, "")
        for action in ("free_requested", "free_completed"):
            self._log(action, found.time_ns, block, found.frames)

    def _log(self, action: str, time_ns: int, block: Block, frames: list[Frame]) -> None:
        self._sessions[-1].append(Event(action, time_ns // 1000, block, frames))

    def _evict_transfers(self) -> None:
        """Drop what collectives copied for themselves: gloo's threads free it, which no profiler sees.

        No collective is under way at the end of a step.
        """
        for block in [block for block in self.live.values() if any(map(is_transfer, block.frames))]:
            del self.live[block.address]
            self._log("free_completed", self._now_us() * 1000, block, [])

    def _now_us(self) -> int:
        return self._sessions[-1][-1].time_us if self._sessions[-1] else 0

    def _evict_overlapped(self) -> None:
        """Drop blocks that went unseen, between sessions, and whose place others have taken."""
        order = sorted(self.live.values(), key=lambda block: block.address)
        now_us = self._now_us()
        for block, following in pairwise(order):
            if block.address + block.size > following.address:
                del self.live[block.address]
                self._log("free_completed", now_us * 1000, block, [])


def is_transfer(frame: Frame) -> bool:
    """Whether what was allocated below this frame is a collective's own copy."""
    name: str = frame["name"]
    return name.startswith("c10d::") or name == "aten::flatten_dense_tensors"


def trace_entries(events: Iterable[Event]) -> list[dict[str, Any]]:
    """Entries of a device trace. The first says `unknown`, as PyTorch's viewer needs one that does."""
    entries = [entry_of(event) for event in events]
    first = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": [], "category": UNKNOWN}
    return [{**first, "time_us": entries[0]["time_us"] if entries else 0}, *entries]


def entry_of(event: Event) -> dict[str, Any]:
    """One trace entry."""
    entry = {
        "action": event.action,
        "addr": event.block.address,
        "size": event.block.size,
        "stream": 0,
        "time_us": event.time_us,
        "compile_context": "N/A",
        "user_metadata": "",
        "frames": event.frames,
    }
    if event.action == "alloc":
        entry |= {"category": event.block.category, "user_metadata": event.block.label}
    return entry


def older_blocks(ledger: Ledger) -> dict[int, list[str]]:
    """{address: [category, label]} of blocks that are older than the first event."""
    born = {id(event.block) for event in ledger.events() if event.action == "alloc"}
    older = {event.block.address: event.block for event in ledger.events() if id(event.block) not in born}
    older |= {address: block for address, block in ledger.live.items() if id(block) not in born}
    return {address: [block.category, block.label] for address, block in older.items()}


def segments(ledger: Ledger) -> list[dict[str, Any]]:
    """Segments that a CPU does not have: aligned ranges over every address in use, for viewers that need them."""
    everything = {event.block.address: event.block.size for event in ledger.events()}
    everything |= {address: block.size for address, block in ledger.live.items()}
    live = sorted(ledger.live.values(), key=lambda block: block.address)
    found, position = [], 0
    for start, stop in aligned_ranges(everything.items()):
        inside = []
        while position < len(live) and live[position].address < stop:
            inside.append(live[position])
            position += 1
        found.append(segment(start, stop, inside))
    return found


def aligned_ranges(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge (address, size) into disjoint ranges of whole grains."""
    ranges: list[tuple[int, int]] = []
    for start, stop in sorted((a // GRAIN * GRAIN, -(-(a + size) // GRAIN) * GRAIN) for a, size in spans):
        if ranges and start <= ranges[-1][1]:
            ranges[-1] = (ranges[-1][0], max(ranges[-1][1], stop))
        else:
            ranges.append((start, stop))
    return ranges


def segment(start: int, stop: int, inside: list[Block]) -> dict[str, Any]:
    """One made-up segment, tiled by its live blocks and the gaps between them."""
    used = sum(block.size for block in inside)
    blocks: list[dict[str, Any]] = []
    place = start
    for block in inside:
        if block.address > place:
            blocks.append(block_entry(place, block.address - place, "inactive", []))
        blocks.append(block_entry(block.address, block.size, "active_allocated", block.frames))
        place = block.address + block.size
    if place < stop:
        blocks.append(block_entry(place, stop - place, "inactive", []))
    return {
        "device": 0,
        "address": start,
        "total_size": stop - start,
        "allocated_size": used,
        "active_size": used,
        "requested_size": used,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
    }


def block_entry(address: int, size: int, state: str, frames: list[Frame]) -> dict[str, Any]:
    """One block of a segment."""
    requested = size if state == "active_allocated" else 0
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": frames}
