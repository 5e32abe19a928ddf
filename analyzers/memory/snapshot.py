"""The fixed names in a snapshot (actions, block states, categories), and the numbers that encode them in columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

import numpy as np

from analyzers.columns import Column, Integers, UnsavedColumns
from analyzers.memory.frames import Frames
from analyzers.store import Columns


class Action(IntEnum):
    """The allocator event that a trace entry records; `UNKNOWN` is an event of any other name.

    `FREE_REQUESTED`: the program freed the block, but CUDA streams may still use it. `FREE_COMPLETED`: its memory is
    free again.
    """

    ALLOC = 0
    FREE_REQUESTED = 1
    FREE_COMPLETED = 2
    SEGMENT_ALLOC = 3
    SEGMENT_FREE = 4
    SEGMENT_MAP = 5
    SEGMENT_UNMAP = 6
    SNAPSHOT = 7
    OOM = 8
    ANNOTATE = 9
    UNKNOWN = 10


class Category(IntEnum):
    """What the memory of a block is used for. The value is the index of the name in `CATEGORIES`."""

    PARAMETERS = 0
    GRADIENTS = 1
    OPTIMIZER_STATE = 2
    ACTIVATIONS = 3
    INPUTS = 4
    TEMPORARY = 5
    COMMUNICATION = 6
    WORKSPACE = 7
    UNKNOWN = 8


class BlockState(IntEnum):
    """The state of a block when the snapshot was taken.

    `PENDING_FREE`: the program freed the block, but a CUDA stream may still use it.
    """

    INACTIVE = 0
    ACTIVE = 1
    PENDING_FREE = 2


ACTIONS = tuple(action.name.lower() for action in Action)
CATEGORIES = tuple(category.name.lower() for category in Category)
UNTAGGED = -1
"""The number in a category column for blocks to which the recorder gave no category."""

ACTION_OF = {name: number for number, name in enumerate(ACTIONS)}
CATEGORY_OF = {name: number for number, name in enumerate(CATEGORIES)} | {
    # The singular forms are what torch.profiler's own conversion to a snapshot writes.
    "parameter": Category.PARAMETERS,
    "gradient": Category.GRADIENTS,
    "activation": Category.ACTIVATIONS,
    "input": Category.INPUTS,
    "autograd_detail": Category.TEMPORARY,
}
STATE_OF = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ACTIVE,
    "active_pending_free": BlockState.PENDING_FREE,
    # The docstring of torch.cuda.memory._snapshot says so; no release writes it.
    "active_awaiting_free": BlockState.PENDING_FREE,
}

# Memory that the allocator takes from the device, and gives back to it.
RESERVING = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
RETURNING = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


def category_names(numbers: Column) -> Column:
    return np.array(CATEGORIES, object)[numbers]


# Give typed access to the columns of a snapshot: `Snapshot` is the whole file, `DeviceTrace` the part of one device.
#
# `reader` makes the columns of trace entries, segments, blocks and annotations; `digest` computes further ones from
# these.

_HISTORY_SHARE_AT_LEAST = 0.01
"""A trace is ignored if it allocates and frees fewer bytes than this share of the memory in use.

Such a trace was switched on just before the snapshot.
"""


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The columns of one snapshot file, freshly read or memory-mapped from the cache; equal only to itself."""

    columns: Columns | UnsavedColumns

    @property
    def recorder(self) -> Mapping[str, object]:
        """What this project's recorder wrote about the whole file, such as `rank` and `limit_bytes`.

        The mapping is empty for a file that PyTorch alone wrote.
        """
        values: Mapping[str, object] = self.columns.meta["recorder"]
        return values

    def recorded_number(self, key: str) -> int | None:
        value = self.recorder.get(key)
        return value if isinstance(value, int) else None

    @cached_property
    def frame_texts(self) -> list[str]:
        """Each distinct frame as `file function`, with forward slashes."""
        c = self.columns
        return [
            f"{self.text(int(file))} {self.text(int(name))}".replace("\\", "/")
            for file, name in zip(c["frame_file"], c["frame_name"], strict=True)
        ]

    @property
    def limit_bytes(self) -> int | None:
        return self.recorded_number("limit_bytes")

    @property
    def limit_name(self) -> str:
        """The name of the process's memory limit on a CPU, such as `RLIMIT_DATA`; empty if it was not recorded."""
        return str(self.recorder.get("limit_name", ""))

    @property
    def made_up_segments(self) -> bool:
        """Whether the segments are not real: on a CPU the recorder writes address ranges around tensors as segments."""
        return bool(self.recorder.get("made_up_segments", False))

    @property
    def settings(self) -> Mapping[str, str]:
        """The allocator's settings as {name: text}; a setting inside another one has the name `outer.inner`."""
        values: Mapping[str, str] = self.columns.meta["settings"]
        return values

    @cached_property
    def entry_counts(self) -> list[int]:
        counts: list[int] = self.columns.meta["entries"]
        return counts

    @cached_property
    def devices(self) -> list[int]:
        """The indexes of the devices that have trace entries or segments; [0] if none has."""
        traced = {device for device, count in enumerate(self.entry_counts) if count}
        return sorted(traced | set(self.columns["segment_device"].tolist())) or [0]

    def device(self, number: int) -> "DeviceTrace":
        return DeviceTrace(self, number)

    @cached_property
    def frames(self) -> Frames:
        """The look-up tables for the texts, frames and stacks, which the columns refer to by index."""
        return Frames(self.columns)

    def text(self, number: int) -> str:
        """Return the text at this index of the snapshot's table of distinct texts; index 0 is the empty text."""
        return self.frames.text(number)


@dataclass(frozen=True)
class DeviceTrace:
    """The trace entries (allocator events), segments and blocks of one device; `len()` counts the trace entries."""

    snapshot: Snapshot
    number: int

    @cached_property
    def entry_rows(self) -> slice:
        start = sum(self.snapshot.entry_counts[: self.number])
        return slice(start, start + len(self))

    def __len__(self) -> int:
        counts = self.snapshot.entry_counts
        # A device may have segments and no trace at all; in a damaged file its number may be negative.
        return counts[self.number] if 0 <= self.number < len(counts) else 0

    def entry(self, name: str) -> Column:
        """Return a column of this device's trace entries, with one row per entry.

        Read from the file: action, addr, size (bytes), time (µs), stack, arena, category, label. Computed by
        `digest`: live_bytes, and the arena and the category of the block that the entry allocates or frees
        (entry_arena, entry_category).
        """
        return self.snapshot.columns[name][self.entry_rows]

    def where(self, action: Action) -> Integers:
        return np.flatnonzero(self.entry("action") == action)

    @cached_property
    def segments(self) -> Integers:
        """The rows of this device in the columns `segment_*`, which hold the segments of all devices."""
        return np.flatnonzero(self.snapshot.columns["segment_device"] == self.number)

    @cached_property
    def blocks(self) -> Integers:
        return np.flatnonzero(np.isin(self.snapshot.columns["block_segment"], self.segments))

    @cached_property
    def annotations(self) -> list[tuple[str, bool, int]]:
        """The name of each annotation of this device, whether it is a start, and the index of the next trace entry."""
        c = self.snapshot.columns
        rows = np.flatnonzero(c["annotation_device"] == self.number)
        # Some recorders write device 0 for all: then every annotation counts.
        rows = rows if len(rows) else np.arange(len(c["annotation_time"]))
        index = np.searchsorted(self.entry("time"), c["annotation_time"][rows], side="left")
        names = map(self.snapshot.text, c["annotation_name"][rows].tolist())
        return list(zip(names, c["annotation_start"][rows].astype(bool).tolist(), index.tolist(), strict=True))

    def segment(self, name: str) -> Column:
        """Return a column of this device's segments, one row each: address, total (bytes), arena, large, expandable."""
        return self.snapshot.columns[f"segment_{name}"][self.segments]

    def block(self, name: str) -> Column:
        """Return a column of this device's blocks, with one row per block when the snapshot was taken.

        Columns: segment (its row in the columns `segment_*`), address, size and requested (bytes), state, stack.
        """
        return self.snapshot.columns[f"block_{name}"][self.blocks]

    @property
    def is_digested(self) -> bool:
        """Whether the columns computed by `digest` exist; they do not while the file is read for the first time."""
        return "lifetimes" in self.snapshot.columns.meta

    @cached_property
    def lifetime_rows(self) -> slice:
        counts = dict(zip(self.snapshot.devices, self.snapshot.columns.meta["lifetimes"], strict=True))
        start = sum(count for device, count in counts.items() if device < self.number)
        return slice(start, start + counts.get(self.number, 0))

    def lifetime(self, name: str) -> Column:
        """Return the column `life_NAME` of this device, with one row per block that ever lived.

        A name is that of a field of `Lifetimes` (such as born, died, size), or arena, guess (the category) or rule; see
        `digest`.
        """
        return self.snapshot.columns[f"life_{name}"][self.lifetime_rows]

    @property
    def has_history(self) -> bool:
        """Whether the trace records enough allocations and frees to replay them, or an OOM.

        Without this history, only the state of the memory at the time of the snapshot is known.
        """
        if len(self.where(Action.OOM)):
            return True
        moved = int(self.entry("size")[np.isin(self.entry("action"), (Action.ALLOC, Action.FREE_COMPLETED))].sum())
        in_use = int(self.block("size")[self.block("state") != BlockState.INACTIVE].sum())
        return moved > 0 and moved >= _HISTORY_SHARE_AT_LEAST * in_use

    @property
    def reserved_bytes(self) -> int:
        return int(self.segment("total").sum())
