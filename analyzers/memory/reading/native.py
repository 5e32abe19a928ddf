"""Read the pickle of a snapshot with the native reader; the columns are the same as those of `reader`."""

from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from analyzers.columns import Column
from analyzers.memory.reading.incremental import CHUNK
from analyzers.memory.reading.interning import InternTables, frame_type
from analyzers.memory.snapshot import ACTION_OF, CATEGORY_OF, STATE_OF, UNTAGGED, Action, BlockState, Category
from analyzers.native import native_module
from analyzers.words import bounded

VOCABULARY = {
    "actions": {name: int(number) for name, number in ACTION_OF.items()},
    "states": {name: int(number) for name, number in STATE_OF.items()},
    "categories": {name: int(number) for name, number in CATEGORY_OF.items()},
    "unknown_action": int(Action.UNKNOWN),
    "out_of_memory": int(Action.OOM),
    "unknown_category": int(Category.UNKNOWN),
    "untagged": UNTAGGED,
    "default_state": int(BlockState.ACTIVE),
    "chunk": CHUNK,
}
_ENTRY_COLUMNS = {
    "action": np.uint8, "addr": np.uint64, "size": np.int64, "time": np.int64, "stack": np.int32, "arena": np.int32,
    "category": np.int8, "label": np.int32,
}  # fmt: skip
_BLOCK_COLUMNS = {
    "block_segment": np.int32, "block_address": np.uint64, "block_size": np.int64, "block_requested": np.int64,
    "block_state": np.uint8, "block_stack": np.int32,
}  # fmt: skip


class NativeTables(InternTables):
    """The texts, stacks and arenas numbered by the native reader; more texts and arenas may be added."""

    def __init__(self, content: dict[str, Any]) -> None:
        super().__init__()
        self.texts.known = {bounded(text): number for number, text in enumerate(content["texts"])}
        arenas = np.frombuffer(content["arenas"], np.int64).reshape(-1, 3)
        self.arenas.known = {(row[0], row[1], row[2]): number for number, row in enumerate(arenas.tolist())}
        frames = np.frombuffer(content["frames"], np.int64).reshape(-1, 3)
        self._stack_columns: dict[str, Column] = {
            **{f"frame_{name}": frames[:, i] for i, name in enumerate(("name", "file", "line"))},
            "stack_frames": np.frombuffer(content["stack_frames"], frame_type(len(frames))),
            "stack_end": np.frombuffer(content["stack_end"], np.int64),
        }

    def columns(self) -> dict[str, Column]:
        """Return, in one dict, the columns of the tables of texts, stacks and arenas, to which other columns refer."""
        return self.arenas.columns() | self._stack_columns | self.texts.columns()


@dataclass(frozen=True)
class NativeSnapshot:
    """The content of a snapshot file as the native reader returns it.

    `segments` are dicts without the blocks. `rest` has the top-level keys of the file except segments and traces.
    `counts` is the number of trace entries of each device.
    """

    entries: dict[str, Column]
    blocks: dict[str, Column]
    counts: list[int]
    segments: list[dict[str, Any]]
    rest: dict[str, Any]
    tables: NativeTables


def read_natively(stream: IO[bytes]) -> NativeSnapshot | None:
    """Return the content of a snapshot; None if there is no native reader, or if it does not understand the file."""
    module = native_module()
    content = module.read_snapshot(stream, VOCABULARY) if module else None
    if content is None:
        return None
    entries, blocks = (
        {name: np.frombuffer(content[name], kind) for name, kind in columns.items()}
        for columns in (_ENTRY_COLUMNS, _BLOCK_COLUMNS)
    )
    counts = np.frombuffer(content["counts"], np.int64).tolist()
    return NativeSnapshot(entries, blocks, counts, content["segments"], content["rest"], NativeTables(content))
