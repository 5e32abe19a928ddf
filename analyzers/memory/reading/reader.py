"""A memory snapshot -> columns, for every schema from torch 2.0 on: pickle or JSON, gzipped or not.

Runs in the limited child of `analyzers.store`. The pickle is data only, and no structure is walked deeper than the
schema goes, so what lists itself or nests endlessly ends as a wrong type.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import IO, Any, cast

import msgspec
import numpy as np
from isal import igzip
from isal.igzip_lib import IsalError

from analyzers import unpickle
from analyzers.columns import Column
from analyzers.errors import HostileInput, InputError
from analyzers.memory.reading.incremental import Harvest, Trace
from analyzers.memory.reading.interning import NO_FRAMES, Interned, Places, Stacks, Texts

VERSION = 1

ACTIONS = (
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
)
CATEGORIES = (
    "parameters",
    "gradients",
    "optimizer_state",
    "activations",
    "inputs",
    "temporary",
    "communication",
    "workspace",
    "unknown",
)
UNTAGGED = -1
STATES = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2, "active_awaiting_free": 2}


class Known(dict[str, int]):
    """Numbers of actions; what newer recorders add is `unknown`."""

    def __missing__(self, _: object) -> int:
        return len(ACTIONS)


ACTION_OF = Known((name, number) for number, name in enumerate(ACTIONS))
CATEGORY_OF = {name: number for number, name in enumerate(CATEGORIES)}
# What torch.profiler's own conversion writes.
CATEGORY_OF |= {"parameter": 0, "gradient": 1, "activation": 3, "input": 4, "autograd_detail": 5}
OOM = ACTION_OF["oom"]
TEXT_AT_MOST = 500
BYTES_AT_MOST = 1 << 62
"""Sums of sizes stay below what int64 holds."""


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """The columns of one snapshot and its `meta`; see `model.Snapshot` for what they mean.

    Raises:
        InputError: Not readable, or not of a snapshot's structure.
        HostileInput: It asks for more than data.
    """
    known = Interned()
    harvest = Harvest(complaining()(lambda entries: trace_columns(entries, known)))
    with complaining(), unpickle.gc_paused():
        with paths[0].open("rb") as file:
            snapshot = parse(file, harvest)
        return columns(snapshot, known, harvest)


@contextmanager
def complaining() -> Iterator[None]:
    """Turns what a wrong type causes into an error for the user."""
    try:
        yield
    except (IsalError, EOFError) as error:  # type: ignore[misc]  # the stub declares an instance
        raise InputError(f"damaged gzip: {error}", "was the file copied whole?") from error
    except (TypeError, ValueError, OverflowError, AttributeError, LookupError) as error:
        raise InputError(
            f"not the structure of a memory snapshot: {type(error).__name__}: {error}",
            "give a file that torch.cuda.memory._dump_snapshot or the trainer wrote",
        ) from error


def parse(file: IO[bytes], harvest: Harvest) -> Any:
    """The object in a file, whichever way it was written; of a pickle the harvest takes the entries meanwhile."""
    stream = inflated(file) if magic(file) == b"\x1f\x8b" else file
    if magic(stream)[:1] == b"\x80":
        with harvest.watching(stream) as watched:
            return unpickle.load(watched)
    try:
        return msgspec.json.decode(stream.read())
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"neither a pickle nor JSON: {error}", "was the file copied whole?") from error


def inflated(file: IO[bytes]) -> IO[bytes]:
    return cast("IO[bytes]", igzip.open(file, "rb"))  # type: ignore[no-untyped-call]  # isal has no types


def magic(stream: IO[bytes]) -> bytes:
    start = stream.read(2)
    stream.seek(0)
    return start


def columns(snapshot: Any, known: Interned, harvest: Harvest) -> tuple[dict[str, Column], dict[str, Any]]:
    """Every table of a parsed snapshot, whose traces are used up."""
    if isinstance(snapshot, list):  # torch.cuda.memory_snapshot()
        snapshot = {"segments": snapshot}
    segments, traces = snapshot.get("segments") or [], snapshot.get("device_traces") or []
    refuse_shared([*traces, *(segment["blocks"] for segment in segments)])
    ours = snapshot.get("workbench") or {}
    tables = (
        entry_columns(traces, harvest)
        | segment_columns(segments, known.places)
        | block_columns(segments, known.stacks)
        | annotation_columns(snapshot.get("external_annotations") or [], known.texts)
        | older_columns(ours.get("blocks") or {}, known.texts)
    )
    tables |= known.columns()
    refuse_oversized(tables)
    return tables, {
        "entries": [len(trace) for trace in traces],
        "ours": ours_meta(ours),
        "settings": settings_of(snapshot),
        "overflowed": overflowed(snapshot, len(traces)),
    }


def refuse_shared(lists: list[list[Any]]) -> None:
    """A list that stands in many places makes a small file endless; recorders write each once."""
    filled = [id(one) for one in lists if one]
    if len(set(filled)) != len(filled):
        raise HostileInput("one list of entries or blocks stands in several places", "no recorder writes such a file")


def refuse_oversized(tables: dict[str, Column]) -> None:
    for name in ("size", "segment_total", "block_size", "block_requested"):
        if len(sizes := tables[name]) and (sizes.min() < 0 or sizes.sum(dtype=np.float64) > BYTES_AT_MOST):
            raise HostileInput("sizes are negative or beyond any memory", "no recorder writes such a file")


def pick(rows: list[dict[str, Any]], key: str, kind: Any, default: Any) -> Column:
    """One key of every row as a column."""
    try:
        return np.fromiter(map(itemgetter(key), rows), kind, len(rows))
    except KeyError:  # older torch, or an entry that lacks it: slower
        return np.fromiter((row.get(key, default) for row in rows), kind, len(rows))


def entry_columns(traces: list[Trace], harvest: Harvest) -> dict[str, Column]:
    """The trace entries of all devices, one device behind the other."""
    parts = [part for trace in [*traces, []] for part in harvest.columns(trace)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def trace_columns(trace: list[dict[str, Any]], known: Interned) -> dict[str, Column]:
    """The columns of some entries."""
    action = np.fromiter(map(ACTION_OF.__getitem__, map(itemgetter("action"), trace)), np.uint8, len(trace))
    addr = pick(trace, "addr", np.uint64, 0)
    for i in np.flatnonzero(action == OOM):
        addr[i] = trace[i].get("device_free", 0)
    return {
        "action": action,
        "addr": addr,
        "size": pick(trace, "size", np.int64, 0),
        "time": pick(trace, "time_us", np.int64, 0),
        "stack": known.stacks.numbers([entry.get("frames", NO_FRAMES) for entry in trace]),
        "place": known.places.numbers(pick(trace, "stream", np.int64, 0), [entry.get("pool_id") for entry in trace]),
    } | tag_columns(trace, known.texts)


def tag_columns(trace: list[dict[str, Any]], texts: Texts) -> dict[str, Column]:
    """Categories and labels that the recorder noted on the entries."""
    if not any("category" in entry for entry in trace):
        return {"category": np.full(len(trace), UNTAGGED, np.int8), "label": np.zeros(len(trace), np.int32)}
    categories = (category_number(entry.get("category")) for entry in trace)
    labels = (texts.number(entry.get("user_metadata") or "") for entry in trace)
    return {
        "category": np.fromiter(categories, np.int8, len(trace)),
        "label": np.fromiter(labels, np.int32, len(trace)),
    }


def category_number(name: object) -> int:
    return CATEGORY_OF.get(name.lower(), CATEGORY_OF["unknown"]) if isinstance(name, str) else UNTAGGED


def segment_columns(segments: list[dict[str, Any]], places: Places) -> dict[str, Column]:
    streams = pick(segments, "stream", np.int64, 0)
    pools = [segment.get("segment_pool_id") or (0, 0) for segment in segments]
    return {
        "segment_device": pick(segments, "device", np.int32, 0),
        "segment_address": pick(segments, "address", np.uint64, 0),
        "segment_total": pick(segments, "total_size", np.int64, 0),
        "segment_place": places.numbers(streams, pools),
        "segment_large": np.array([segment.get("segment_type") == "large" for segment in segments], bool),
        "segment_expandable": np.array([bool(segment.get("is_expandable")) for segment in segments], bool),
    }


def block_columns(segments: list[dict[str, Any]], stacks: Stacks) -> dict[str, Column]:
    rows = list(blocks_of(segments))
    numbers = stacks.numbers([frames_of(block) for _, _, block in rows])
    return {
        "block_segment": np.array([segment for segment, _, _ in rows], np.int32),
        "block_address": np.array([address for _, address, _ in rows], np.uint64),
        "block_size": np.array([block["size"] for _, _, block in rows], np.int64),
        "block_requested": np.array([requested_of(block) for _, _, block in rows], np.int64),
        "block_state": np.array([STATES.get(block["state"], 1) for _, _, block in rows], np.uint8),
        "block_stack": numbers,
    }


def blocks_of(segments: Iterable[dict[str, Any]]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Segment number, address and block; torch 2.0 left the addresses out."""
    for number, segment in enumerate(segments):
        address = segment.get("address", 0)
        for block in segment["blocks"]:
            yield number, block.get("address", address), block
            address += block["size"]


def requested_of(block: dict[str, Any]) -> int:
    history = block.get("history") or [{}]
    return int(block.get("requested_size", history[0].get("real_size", block["size"])))


def frames_of(block: dict[str, Any]) -> list[dict[str, Any]]:
    history = block.get("history") or [{}]
    frames: list[dict[str, Any]] = block.get("frames") or history[0].get("frames") or NO_FRAMES
    return frames


def annotation_columns(notes: list[dict[str, Any]], texts: Texts) -> dict[str, Column]:
    return {
        "note_start": np.array([note.get("stage") == "START" for note in notes], bool),
        "note_name": np.array([texts.number(note.get("name", "")) for note in notes], np.int32),
        "note_device": pick(notes, "device", np.int32, 0),
        "note_time": pick(notes, "time_us", np.int64, 0),
    }


def older_columns(blocks: dict[Any, Any], texts: Texts) -> dict[str, Column]:
    """What the recorder noted on blocks older than the trace: {address: [category, label]}."""
    rows = [(int(address), category_number(tag[0]), texts.number(tag[1] or "")) for address, tag in blocks.items()]
    return {
        "older_addr": np.array([row[0] for row in rows], np.uint64),
        "older_category": np.array([row[1] for row in rows], np.int8),
        "older_label": np.array([row[2] for row in rows], np.int32),
    }


def settings_of(snapshot: dict[str, Any]) -> dict[str, str]:
    """The allocator's settings as text, nested ones as `outer.inner`."""
    found: dict[str, str] = {}
    for key, value in (snapshot.get("allocator_settings") or {}).items():
        nested = value.items() if isinstance(value, dict) else [("", value)]
        found |= {f"{plain(key)}.{plain(inner)}".rstrip("."): plain(one) for inner, one in nested}
    return found


def plain(value: object) -> str:
    """A scalar as text; what is no scalar is not walked into."""
    return str(value)[:TEXT_AT_MOST] if isinstance(value, str | int | float | None) else f"({type(value).__name__})"


def overflowed(snapshot: dict[str, Any], devices: int) -> list[bool | None]:
    """Whether each device's ring of entries lost its oldest; None where the recorder does not say.

    Newer recorders write it at the top or among the settings, once for all or device by device.
    """
    settings = snapshot.get("allocator_settings") or {}
    told = snapshot.get("trace_alloc_overflowed", settings.get("trace_alloc_overflowed"))
    each = told if isinstance(told, list | tuple) else [told] * devices
    return [None if one is None else bool(one) for one in [*each, *[None] * devices][:devices]]


def ours_meta(ours: dict[str, Any]) -> dict[str, Any]:
    """The recorder's own scalars; empty in a file that PyTorch wrote."""
    kinds: dict[str, type] = {
        "rank": int,
        "step": int,
        "limit_bytes": int,
        "lost_notes": int,
        "made_up_segments": bool,
        "exact": bool,
        "phase": str,
        "process_bytes": int,
        "device_used_bytes": int,
    }
    return {key: ours[key] for key, kind in kinds.items() if isinstance(ours.get(key), kind)}
