"""Typed views of a snapshot's columns, and the structs of `workbench.memory/1`."""

from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np

from analyzers.columns import Column, UnsavedColumns
from analyzers.memory.model_extras import Breakdown, WhatIf
from analyzers.memory.reading.frames import Frames
from analyzers.memory.reading.reader import ACTION_OF
from analyzers.store import Columns


class Oom(msgspec.Struct, frozen=True, kw_only=True):
    """The failed allocation; `categories` and `modules` (the largest) are the bytes alive at that instant.

    `pattern` is `growth` (stacks that rose step by step, from `since_step` on, fill a good part), `spike` (well above
    `usual_peak_bytes`, the highest of the steps before), `steady` (no more than these), or `unknown` (no step before).
    `usual_inputs_bytes` is the most that inputs held at the peaks of these steps.
    """

    requested_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    index: int
    step: int | None
    frames: list[str]
    categories: dict[str, int]
    modules: dict[str, int]
    pattern: str
    since_step: int | None
    usual_peak_bytes: int | None
    usual_inputs_bytes: int | None


class FreePieces(msgspec.Struct, frozen=True, kw_only=True):
    """What is free at the end in a stream's part of a pool, or in one `segment` (its address) there.

    `split_bytes` of it lie in segments that are in use, which cannot be given back to the device.
    """

    pool: str
    stream: int
    segment: int | None
    free_bytes: int
    split_bytes: int
    pieces: int
    largest_bytes: int


class Fragmentation(msgspec.Struct, frozen=True, kw_only=True):
    """How the segments are used at the end; `segments` are those in use with the most free.

    Where segments are made up (CPU) only `allocated_bytes` means something.
    """

    reserved_bytes: int
    allocated_bytes: int
    rounding_bytes: int
    inactive_split_bytes: int
    largest_free_block_bytes: int
    request_bytes: int | None
    made_up_segments: bool
    pools: list[FreePieces]
    segments: list[FreePieces]


class TopStack(msgspec.Struct, frozen=True, kw_only=True):
    """What one stack holds at the peak; the innermost frame of the user's own code comes first."""

    bytes: int
    count: int
    category: str
    label: str
    frames: list[str]


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """A stack whose live bytes grow in `steps` steps in a row, of which `first_step` is the first."""

    bytes_per_step: int
    total_bytes: int
    steps: int
    first_step: int
    category: str
    frames: list[str]


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """One stream's part of one memory pool: its segments at the end, and the requested bytes in it over time.

    The pool `?` is that of blocks whose segment was gone before the end, in files of torch before 2.12: where there
    is one, the peaks of the others are lower bounds.
    """

    pool: str
    stream: int
    segments: int
    reserved_bytes: int
    allocated_bytes: int
    start_bytes: int
    peak_bytes: int
    peak_index: int
    end_bytes: int


class StreamUse(msgspec.Struct, frozen=True, kw_only=True):
    """Requested bytes of the blocks that one stream allocated; `peak_index` -1 = before the first entry."""

    stream: int
    start_bytes: int
    peak_bytes: int
    peak_index: int
    end_bytes: int


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """The entry of an allocation for which cached segments had to be given back first."""

    index: int
    freed_bytes: int


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What a remedy would free of what, at the failure or the peak, and the model that says so."""

    what: str
    frees_bytes: int
    of_bytes: int
    model: str


class Basis(msgspec.Struct, frozen=True, kw_only=True):
    """What part of the peak has its category from one rule, and why; `category` is empty for what was noted."""

    rule: str
    category: str
    because: str
    confidence: float
    bytes: int
    blocks: int


class Notable(msgspec.Struct, frozen=True, kw_only=True):
    """What stands out without being a failure: `late_state`, `loss` or `kept`; the stack that made most of it.

    `frees_bytes` is what the remedy would take off the peak.
    """

    what: str
    bytes: int
    frees_bytes: int
    step: int | None
    frames: list[str]


class StepUse(msgspec.Struct, frozen=True, kw_only=True):
    """A training step that the trace holds whole: its peak, and who held what after its last entry."""

    step: int
    first_entry: int
    last_entry: int
    peak_bytes: int
    peak_index: int
    end_bytes: int
    end_categories: dict[str, int]


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One device of one file; sizes in bytes, `peak_index` -1 = before the first entry.

    `top_stacks` is what held the most at the peak, `end_stacks` after the last entry; `steps` are the last that the
    annotations mark; `lacking` is what this file does not tell about the device.
    """

    path: str
    rank: int | None
    device: int
    step: int | None
    entries: int
    start_allocated_bytes: int
    peak_allocated_bytes: int
    peak_index: int
    end_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    limit_bytes: int | None
    pools: list[Pool]
    streams: list[StreamUse]
    retries: list[Retry]
    consistent: bool
    lacking: list[str]
    oom: Oom | None
    categories: dict[str, int]
    categories_exact: bool
    categories_confidence: float
    categories_bases: list[Basis]
    fragmentation: Fragmentation
    top_stacks: list[TopStack]
    end_stacks: list[TopStack]
    steps: list[StepUse]
    growing: list[Growth]
    notable: list[Notable]
    estimates: list[Estimate]


class MemoryData(msgspec.Struct, frozen=True):
    """`data` of a memory report; `breakdown` and `what_if` are filled when they are asked for."""

    devices: list[Device]
    breakdown: list[Breakdown] = []
    what_if: list[WhatIf] = []


@dataclass(frozen=True)
class Snapshot:
    """The columns of one file."""

    columns: Columns | UnsavedColumns

    @property
    def limit_bytes(self) -> int | None:
        limit: int | None = self.columns.meta["ours"].get("limit_bytes")
        return limit

    @property
    def made_up_segments(self) -> bool:
        return bool(self.columns.meta["ours"].get("made_up_segments", False))

    @cached_property
    def devices(self) -> list[int]:
        """The devices that have entries or segments; the first one if none has."""
        traced = {device for device, entries in enumerate(self.columns.meta["entries"]) if entries}
        return sorted(traced | set(self.columns["segment_device"].tolist())) or [0]

    def device(self, number: int) -> "DeviceTrace":
        return DeviceTrace(self, number)

    @cached_property
    def frames(self) -> Frames:
        return Frames(self.columns)

    def text(self, number: int) -> str:
        return self.frames.text(number)


@dataclass(frozen=True)
class DeviceTrace:
    """The part of a snapshot that belongs to one device."""

    snapshot: Snapshot
    number: int

    @cached_property
    def rows(self) -> slice:
        """Where this device's entries lie in the columns of entries."""
        entries = self.snapshot.columns.meta["entries"]
        start = sum(entries[: self.number])
        return slice(start, start + len(self))

    def __len__(self) -> int:
        entries: list[int] = self.snapshot.columns.meta["entries"]
        return entries[self.number] if self.number < len(entries) else 0

    def entry(self, name: str) -> Column:
        """A column of the entries: action, addr, size, time, stack, place, category, label; see `digest.derive` too."""
        return self.snapshot.columns[name][self.rows]

    def where(self, action: str) -> Column:
        """The indices of the entries with this action."""
        return np.flatnonzero(self.entry("action") == ACTION_OF[action])

    @cached_property
    def segments(self) -> Column:
        """The numbers of this device's segments."""
        return np.flatnonzero(self.snapshot.columns["segment_device"] == self.number)

    @cached_property
    def blocks(self) -> Column:
        """The numbers of this device's blocks."""
        return np.flatnonzero(np.isin(self.snapshot.columns["block_segment"], self.segments))

    @property
    def digested(self) -> bool:
        """Whether the derived columns are there: they are not while the file is being read."""
        return "lives" in self.snapshot.columns.meta

    @cached_property
    def life_rows(self) -> slice:
        """Where this device's blocks lie in the columns of blocks that ever lived."""
        counts = dict(zip(self.snapshot.devices, self.snapshot.columns.meta["lives"], strict=True))
        start = sum(count for device, count in counts.items() if device < self.number)
        return slice(start, start + counts.get(self.number, 0))

    def life(self, name: str) -> Column:
        """A derived column of the blocks that ever lived; see `digest.derive`."""
        return self.snapshot.columns[f"life_{name}"][self.life_rows]

    def block(self, name: str) -> Column:
        """A column of the blocks: segment, address, size, requested, state, stack."""
        return self.snapshot.columns[f"block_{name}"][self.blocks]

    @property
    def reserved_bytes(self) -> int:
        return int(self.snapshot.columns["segment_total"][self.segments].sum())
