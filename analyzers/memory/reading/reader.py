"""Read a memory snapshot into columns, for every schema since torch 2.0: pickle or JSON, gzipped or not.

The reader runs in a child process with limits on memory and time (`analyzers.child`). A pickle that would do more than
create data is refused. Only as many levels of nesting are read as the schema has, so a list that contains itself is
refused as a value of a wrong type.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np
import numpy.typing as npt
from isal import igzip
from isal.igzip_lib import IsalError

from analyzers import unpickle
from analyzers.columns import Column
from analyzers.errors import HostileInput, InputError
from analyzers.files import decoded_json, open_regular
from analyzers.memory.reading.interning import (
    CHUNK,
    NO_FRAMES,
    ArenaTable,
    IncrementalReader,
    InternTables,
    RawFrames,
    RawTrace,
    StackTable,
    TextTable,
    frame_type,
)
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


_GZIP_MAGIC, _PICKLE_MAGIC = b"\x1f\x8b", b"\x80"
_TEXT_AT_MOST = 500
_BYTES_AT_MOST = 1 << 62
"""The largest sum of sizes that is accepted; it is far above any real memory, and int64 can hold it."""

Row = Mapping[str, Any]
"""A dict of the snapshot file: a trace entry, a segment, a block or an annotation."""

# The scalars that our own recorder writes about the whole file, and their types.
_RECORDER_KEYS: dict[str, type] = {
    "rank": int,
    "step": int,
    "limit_bytes": int,
    "limit_name": str,
    "lost_notes": int,
    "made_up_segments": bool,
    "exact": bool,
    "older_blocks_known": bool,
    "phase": str,
    "process_bytes": int,
    "device_used_bytes": int,
    "device_process_bytes": int,
    "nccl_groups": int,
}


class ActionNumbers(dict[str, int]):
    """A dict from the name of an action to its number; a name that is not in the dict gets `Action.UNKNOWN`.

    It is a subclass of dict so that a million look-ups stay fast.
    """

    def __missing__(self, _: object) -> int:
        return int(Action.UNKNOWN)


_ACTION_NUMBERS = ActionNumbers(ACTION_OF)


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the columns of one snapshot file, and its metadata. `snapshot.Snapshot` gives typed access to both.

    `paths` holds the one file.

    Raises:
        InputError: The file is not readable, or does not have the structure of a snapshot.
        HostileInput: The file would run code, or has a structure that no recorder writes.
    """
    tables = InternTables()
    entries = IncrementalReader(_as_input_errors()(lambda trace: trace_columns(trace, tables)))
    with _as_input_errors(), unpickle.gc_paused():
        with open_regular(paths[0]) as file:
            stream = _decompressed(file) if _magic(file) == _GZIP_MAGIC else file
            is_pickle = _magic(stream)[:1] == _PICKLE_MAGIC
            if is_pickle and (native := read_natively(stream)):
                return _native_columns(native)
            stream.seek(0)
            snapshot = unpickled(stream, entries) if is_pickle else decoded(stream)
        return columns(snapshot, tables, entries)


@contextmanager
def _as_input_errors() -> Iterator[None]:
    """In a `with` block, turn an exception caused by damaged gzip data or a wrong type into an `InputError`."""
    try:
        yield
    except (IsalError, EOFError) as error:  # type: ignore[misc]  # the stub declares an instance
        raise InputError(f"damaged gzip: {error}", "was the file copied whole?") from error
    except (TypeError, ValueError, OverflowError, AttributeError, LookupError) as error:
        raise InputError(
            f"not the structure of a memory snapshot: {type(error).__name__}: {error}",
            "give a file that torch.cuda.memory._dump_snapshot or the trainer wrote",
        ) from error


def unpickled(stream: IO[bytes], entries: IncrementalReader) -> Any:
    with entries.watch(stream) as watched:
        return unpickle.load(watched)


def decoded(stream: IO[bytes]) -> Any:
    try:
        return decoded_json(stream.read())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"neither a pickle nor JSON: {error}", "was the file copied whole?") from error


def _decompressed(file: IO[bytes]) -> IO[bytes]:
    """Return a stream of the decompressed contents of a gzipped file.

    The package isal is several times as fast as the standard library.
    """
    return cast("IO[bytes]", igzip.open(file, "rb"))  # type: ignore[no-untyped-call]  # isal has no types


def _magic(stream: IO[bytes]) -> bytes:
    start = stream.read(2)
    stream.seek(0)
    return start


def columns(
    snapshot: Any, tables: InternTables, entries: IncrementalReader
) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return every column of a parsed snapshot, and its metadata: counts of entries, settings, what the recorder noted.

    The texts, stacks and arenas of the file are added to `tables`. `entries` has converted part of the trace entries
    already while the file was read. The dicts of the trace entries in `snapshot` are cleared to free memory.
    """
    if isinstance(snapshot, list):  # torch.cuda.memory_snapshot() gives the segments alone
        snapshot = {"segments": snapshot}
    segments, traces = snapshot.get("segments") or [], snapshot.get("device_traces") or []
    _refuse_shared([*traces, *(segment["blocks"] for segment in segments)])
    table = (
        _entry_columns(traces, entries)
        | _segment_columns(segments, tables.arenas)
        | _block_columns(segments, tables.stacks)
    )
    return _with_small_parts(table, snapshot, tables, [len(trace) for trace in traces])


def _native_columns(native: NativeSnapshot) -> tuple[dict[str, Column], dict[str, Any]]:
    table = native.entries | _segment_columns(native.segments, native.tables.arenas) | native.blocks
    return _with_small_parts(table, native.rest, native.tables, native.counts)


def _with_small_parts(
    table: dict[str, Column], snapshot: Row, tables: InternTables, counts: list[int]
) -> tuple[dict[str, Column], dict[str, Any]]:
    """Add the columns of annotations, recorder's tags, texts and stacks to `table`; return it and the file's metadata.

    `table` is changed in place; `tables` has the distinct texts, stacks and arenas, to which the columns refer by
    index. `counts` is the number of trace entries of each device.
    """
    recorder = snapshot.get("workbench") or {}
    table |= _annotation_columns(snapshot.get("external_annotations") or [], tables.texts)
    table |= _older_columns(recorder.get("blocks") or {}, tables.texts)
    # Last, as the other tables are still numbering texts and stacks until here.
    table |= tables.columns()
    _refuse_oversized(table)
    return table, {
        "entries": counts,
        "recorder": _recorder_scalars(recorder),
        "settings": _settings_of(snapshot),
        "overflowed": overflowed(snapshot, len(counts)),
    }


def _refuse_shared(lists: Sequence[Sequence[object]]) -> None:
    """Refuse a file in which one list of entries or blocks is used twice: a small file could then expand without end.

    Raises:
        HostileInput: A list occurs twice; recorders write each list once.
    """
    filled = [id(rows) for rows in lists if rows]
    if len(set(filled)) != len(filled):
        raise HostileInput(
            "the same list of entries or blocks is in several places of the file",
            "record the snapshot again: PyTorch does not write such a file",
        )


def _refuse_oversized(table: Mapping[str, Column]) -> None:
    """Refuse a file whose sizes would overflow int64 when they are summed.

    Raises:
        HostileInput: A size is negative, or the sum of a column of sizes is above `_BYTES_AT_MOST`.
    """
    for name in ("size", "segment_total", "block_size", "block_requested"):
        if len(sizes := table[name]) and (sizes.min() < 0 or sizes.sum(dtype=np.float64) > _BYTES_AT_MOST):
            raise HostileInput("sizes are negative or beyond any memory", "no recorder writes such a file")


def _column_of(rows: Sequence[Row], key: str, kind: npt.DTypeLike, default: object) -> Column:
    """Return the value of `key` in each of `rows` as a column of type `kind`; `default` for a row without this key."""
    try:
        return np.fromiter(map(itemgetter(key), rows), kind, len(rows))
    except KeyError:  # older torch, or an entry that lacks it: slower
        return np.fromiter((row.get(key, default) for row in rows), kind, len(rows))


def _entry_columns(traces: Sequence[RawTrace], entries: IncrementalReader) -> dict[str, Column]:
    # The empty trace gives the columns their types where there is no other.
    parts = [part for trace in [*traces, []] for part in entries.columns(trace)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def trace_columns(trace: Sequence[Row], tables: InternTables) -> dict[str, Column]:
    """Return the columns of the given trace entries: action, addr, size, time (µs), stack, arena, category, label.

    `stack`, `arena` and `label` are indexes into `tables`. An `oom` entry has no address; its `addr` is the free memory
    of the device in bytes.
    """
    action = np.fromiter(map(_ACTION_NUMBERS.__getitem__, map(itemgetter("action"), trace)), np.uint8, len(trace))
    addr = _column_of(trace, "addr", np.uint64, 0)
    for i in np.flatnonzero(action == Action.OOM).tolist():
        # An `oom` entry has no address; PyTorch writes there what the device had left.
        addr[i] = trace[i].get("device_free", 0)
    streams, pools = _column_of(trace, "stream", np.int64, 0), [entry.get("pool_id") for entry in trace]
    return {
        "action": action,
        "addr": addr,
        "size": _column_of(trace, "size", np.int64, 0),
        "time": _column_of(trace, "time_us", np.int64, 0),
        "stack": tables.stacks.numbers([entry.get("frames", NO_FRAMES) for entry in trace]),
        "arena": tables.arenas.numbers(streams, pools),
    } | _tag_columns(trace, tables.texts)


def _tag_columns(trace: Sequence[Row], texts: TextTable) -> dict[str, Column]:
    """Return the columns `category` and `label` of trace entries, which only this project's recorder fills.

    Without tags the category is `UNTAGGED`. A label is an index of `texts`, 0 if there is none.
    """
    if not any("category" in entry for entry in trace):
        return {"category": np.full(len(trace), UNTAGGED, np.int8), "label": np.zeros(len(trace), np.int32)}
    categories = (_category_number(entry.get("category")) for entry in trace)
    labels = (texts.number(entry.get("user_metadata") or "") for entry in trace)
    return {
        "category": np.fromiter(categories, np.int8, len(trace)),
        "label": np.fromiter(labels, np.int32, len(trace)),
    }


def _category_number(name: object) -> int:
    return int(CATEGORY_OF.get(name.lower(), Category.UNKNOWN)) if isinstance(name, str) else UNTAGGED


def _segment_columns(segments: Sequence[Row], arenas: ArenaTable) -> dict[str, Column]:
    """Return the columns of the segments, with one row per segment; `segment_arena` is an index of `arenas`."""
    streams = _column_of(segments, "stream", np.int64, 0)
    pools = [segment.get("segment_pool_id") or (0, 0) for segment in segments]
    return {
        "segment_device": _column_of(segments, "device", np.int32, 0),
        "segment_address": _column_of(segments, "address", np.uint64, 0),
        "segment_total": _column_of(segments, "total_size", np.int64, 0),
        "segment_arena": arenas.numbers(streams, pools),
        "segment_large": np.array([segment.get("segment_type") == "large" for segment in segments], bool),
        "segment_expandable": np.array([bool(segment.get("is_expandable")) for segment in segments], bool),
    }


def _block_columns(segments: Sequence[Row], stacks: StackTable) -> dict[str, Column]:
    """Return the columns of the blocks of all segments, with one row per block, free blocks included.

    `block_segment` is an index into `segments`, and `block_stack` an index into `stacks`.
    """
    rows = list(_blocks_of(segments))
    numbers = stacks.numbers([frames_of(block) for _, _, block in rows])
    return {
        "block_segment": np.array([segment for segment, _, _ in rows], np.int32),
        "block_address": np.array([address for _, address, _ in rows], np.uint64),
        "block_size": np.array([block["size"] for _, _, block in rows], np.int64),
        "block_requested": np.array([requested_bytes(block) for _, _, block in rows], np.int64),
        "block_state": np.array([STATE_OF.get(block["state"], BlockState.ACTIVE) for _, _, block in rows], np.uint8),
        "block_stack": numbers,
    }


def _blocks_of(segments: Iterable[Row]) -> Iterator[tuple[int, int, Row]]:
    """Yield, for each block of the segments: the index of its segment, its address, and its dict.

    A file of torch 2.0 has no addresses of blocks: they are computed from the segment's address and the sizes.
    """
    for number, segment in enumerate(segments):
        address = segment.get("address", 0)
        for block in segment["blocks"]:
            yield number, block.get("address", address), block
            address += block["size"]


def requested_bytes(block: Row) -> int:
    """Return the bytes requested for a block; files of torch 2.0 and older have this number in `history`.

    If the number is not recorded, the block's size is returned.
    """
    history = block.get("history") or [{}]
    return int(block.get("requested_size", history[0].get("real_size", block["size"])))


def frames_of(block: Row) -> RawFrames:
    """Return the frames of a block's allocation, empty if not recorded; torch 2.0 and older wrote them in `history`."""
    history = block.get("history") or [{}]
    frames: RawFrames = block.get("frames") or history[0].get("frames") or NO_FRAMES
    return frames


def _annotation_columns(annotations: Sequence[Row], texts: TextTable) -> dict[str, Column]:
    """Return the columns of the annotations, with one row per start or end of a `record_function` range.

    `annotation_name` is an index of `texts`; `annotation_time` is in µs.
    """
    return {
        "annotation_start": np.array([annotation.get("stage") == "START" for annotation in annotations], bool),
        "annotation_name": np.array([texts.number(row.get("name", "")) for row in annotations], np.int32),
        "annotation_device": _column_of(annotations, "device", np.int32, 0),
        "annotation_time": _column_of(annotations, "time_us", np.int64, 0),
    }


def _older_columns(blocks: Mapping[Any, Any], texts: TextTable) -> dict[str, Column]:
    """Return the address, category and label of each block that was allocated before the trace begins.

    This project's recorder writes these tags into `blocks`: {address of a block: [category, label]}.
    """
    rows = [(int(address), _category_number(tag[0]), texts.number(tag[1] or "")) for address, tag in blocks.items()]
    return {
        "older_addr": np.array([row[0] for row in rows], np.uint64),
        "older_category": np.array([row[1] for row in rows], np.int8),
        "older_label": np.array([row[2] for row in rows], np.int32),
    }


def _settings_of(snapshot: Row) -> dict[str, str]:
    """Return {name: text} of the allocator's settings; a setting inside another one has the name `outer.inner`."""
    settings: dict[str, str] = {}
    for key, value in (snapshot.get("allocator_settings") or {}).items():
        nested = value.items() if isinstance(value, dict) else [("", value)]
        settings |= {
            f"{_scalar_text(key)}.{_scalar_text(inner)}".rstrip("."): _scalar_text(item) for inner, item in nested
        }
    return settings


def _scalar_text(value: object) -> str:
    """Return a scalar as a text of bounded length; for any other value, which may be huge, only its type's name."""
    if not isinstance(value, str | int | float | None):
        return f"({type(value).__name__})"
    return str(value)[:_TEXT_AT_MOST].encode("utf-8", "replace").decode()


def overflowed(snapshot: Row, devices: int) -> list[bool | None]:
    """Return, for each device, whether the ring buffer of its trace overwrote the oldest entries; None if not recorded.

    Newer recorders write this flag at the top level of the file or among the settings, as one value for all devices
    or as a list.
    """
    settings = snapshot.get("allocator_settings") or {}
    flag = snapshot.get("trace_alloc_overflowed", settings.get("trace_alloc_overflowed"))
    flags = [*flag] if isinstance(flag, list | tuple) else [flag] * devices
    padded = [*flags, *[None] * devices][:devices]
    return [None if value is None else bool(value) for value in padded]


def _recorder_scalars(recorder: Row) -> dict[str, Any]:
    """Return the numbers and texts that this project's recorder wrote about the whole file.

    Values of a wrong type are left out.
    """
    found = {key: recorder[key] for key, kind in _RECORDER_KEYS.items() if type(recorder.get(key)) is kind}
    return {key: _scalar_text(value) if isinstance(value, str) else value for key, value in found.items()}
