"""Make tables about one snapshot for the user interfaces: timelines, groups, blocks, segments, events, settings.

Most functions take an artefact (the snapshot file), `options` for reading it, a device (its index in the file) and an
entry (an index in the device's trace of allocator events; -1: before the first). Each raises InputError if the file
cannot be read.
"""

from collections.abc import Mapping
from itertools import pairwise

import msgspec
import numpy as np
import pandas as pd

from analyzers import store
from analyzers.columns import Column, Integers
from analyzers.errors import InputError
from analyzers.memory import allocator_state
from analyzers.memory.arenas import BlockArenas
from analyzers.memory.categorise import categorise
from analyzers.memory.grouping import group_live_blocks, owner_tree
from analyzers.memory.lifetimes import BEFORE, Replay
from analyzers.memory.loading import open_replay, open_snapshot
from analyzers.memory.model import StepUse
from analyzers.memory.phases import (
    Phase,
    PhaseTimeline,
    annotated_windows,
    step_clock,
    whole_steps,
)
from analyzers.memory.snapshot import CATEGORIES, Action, DeviceTrace
from analyzers.memory.stacks import top_stacks as largest_stacks
from analyzers.memory.training_loop import live_bytes_by_group, step_uses
from analyzers.run import Artefact

_OLDER = len(Phase)
"""The number that stands for the phase of blocks that were allocated before the trace begins."""
PHASE_NAMES = {
    Phase.NONE: "other",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "optimizer",
    _OLDER: "before the trace",
}
_ANNOTATION_OF = {Phase.FORWARD: "fwd", Phase.BACKWARD: "bwd", Phase.OPTIMIZER: "Optimizer.step"}
"""The prefix of the annotations that mark each phase; this project's recorder and PyTorch's optimizer write them."""


def _allocation_phases(replay: Replay) -> Integers:
    """Return the training phase in which each block was allocated, as a key of `PHASE_NAMES`.

    An annotation that marks a phase has priority. Without one, the stack that allocated the block shows the phase.
    """
    trace, born = replay.trace, replay.lifetimes.born
    phase = PhaseTimeline.of(trace).at(born)
    for annotated, prefix in _ANNOTATION_OF.items():
        phase = np.where(annotated_windows(trace, prefix).contains(born), int(annotated), phase)
    return np.where(born == BEFORE, _OLDER, phase)


_STATE_NAMES = ("inactive", "active", "pending_free")
Window = tuple[int, int]
"""A range of trace entries: the index of the first, and the index after the last."""


def timeline(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    buckets: int = 200,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return the allocated bytes over the trace entries of a window (None: all entries), in at most `buckets` rows.

    Columns: entry, time_us, allocated, reserved, pending (the part of allocated that the program freed, but that a CUDA
    stream may still use), a column per category (they sum to allocated), oom (bytes of the request that failed at this
    entry, else 0). A bucket is a range of entries; its row is the state after the entry with the most allocated bytes,
    so that every peak is shown. Each failed request has a row of its own; if there are many, only the last ones do, and
    they fill at most half of all rows. Without a trace there is one row, the state when the snapshot was taken, with
    entry -1.
    """
    replay = open_replay(artefact, options, device)
    return _timeline_rows(replay, _highest_instants(replay, buckets, window))


def _highest_instants(replay: Replay, buckets: int, window: Window | None) -> Integers:
    """Return, for each of at most `buckets` ranges of trace entries, the index of the entry with the most live bytes.

    The result is [-1] if the window has no trace entries. A failed request is a range of its own.
    """
    first, last = window or (0, len(replay.trace))
    first, last = max(first, 0), min(last, len(replay.trace))
    if first >= last:
        return np.array([BEFORE])
    failed = replay.trace.where(Action.OOM)
    failed = failed[(failed >= first) & (failed < last)]
    # Alone in a bucket: the instant before a failure is often higher, as memory was freed to make room in vain.
    alone = failed[max(len(failed) - (buckets + 1) // 4, 0) :]
    # A failure splits an even bucket in two: two rows less for each keep the total within `buckets`.
    even = np.linspace(first, last, min(buckets - 2 * len(alone), last - first) + 1).astype(np.int64)
    edges = np.unique(np.concatenate([even, alone, alone + 1]))
    return np.array([low + int(replay.live_bytes[low:high].argmax()) for low, high in pairwise(edges)])


def timeline_by(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    by: str = "pool",
    buckets: int = 200,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return the allocated bytes over time by `pool`, `stream` or `phase`, in at most `buckets` rows.

    The rows are those of `timeline`: one for each range of entries, after the entry with the most allocated bytes.
    Columns: entry, time_us, allocated, and one column for each pool, stream or phase of allocation. Pools: `0.0` is the
    default pool, `?` a pool that is not recorded (files before torch 2.12). Streams: `stream 0`. Phases: forward,
    backward, optimizer, other, `before the trace`. These columns sum to allocated; if there are too many, the rest is
    in a column `others`.

    Raises:
        InputError: `by` has another value.
    """
    if by not in ("pool", "stream", "phase"):
        raise InputError(f"cannot place by {by}", "choose one of pool, stream, phase")
    replay = open_replay(artefact, options, device)
    instants = _highest_instants(replay, buckets, window)
    layers = _bytes_by_phase(replay, instants) if by == "phase" else _bytes_by_arena(replay, instants, by)
    table = _timeline_rows(replay, instants)[["entry", "time_us", "allocated"]]
    others = table["allocated"] - sum(layers.values())
    return table.assign(**layers, **({"others": others} if others.any() else {}))


def _bytes_by_arena(replay: Replay, instants: Integers, by: str) -> Mapping[str, Integers]:
    """Return {name: live bytes after each of the trace entries `instants`} of the pools or the streams.

    `by` is `pool` or `stream`; the pool or stream with the highest peak comes first.
    """
    arenas = BlockArenas(replay)
    names = arenas.pool_names if by == "pool" else arenas.stream_names
    curves = {name: arenas.usage(np.flatnonzero(names == name)) for name in dict.fromkeys(names[arenas.used])}
    by_peak = sorted(curves, key=lambda name: -curves[name].peak[0])
    return {name: curves[name].after(instants) for name in by_peak}


def _bytes_by_phase(replay: Replay, instants: Integers) -> Mapping[str, Integers]:
    layers = live_bytes_by_group(replay.lifetimes, _allocation_phases(replay), len(PHASE_NAMES), instants)
    return {name: layers[number] for number, name in PHASE_NAMES.items()}


def reserved_ranges(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    window: Window | None = None,
    limit: int = 500,
) -> pd.DataFrame:
    """Return a table of address ranges, with the trace entries that reserved and released each, the largest first."""
    return allocator_state.segment_lives(open_snapshot(artefact, options).device(device), window, limit)


def events(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    first: int = 0,
    count: int = 100,
    text: str = "",
) -> pd.DataFrame:
    """Return a table of `count` trace entries from index `first` on (see `allocator_state.events`).

    If `text` is given, only the entries that match it are counted and returned.
    """
    return allocator_state.events(open_replay(artefact, options, device), first, count, text)


def search(
    artefact: Artefact, text: str, options: store.Options | None = None, device: int = 0, limit: int = 100
) -> pd.DataFrame:
    """Return a table of the blocks that match a frame, label, category, address or size (`history.search_blocks`)."""
    return allocator_state.search_blocks(open_replay(artefact, options, device), text, limit)


def settings(artefact: Artefact, options: store.Options | None = None) -> pd.DataFrame:
    """Return a table of the allocator's settings, empty if the file has none. Columns: key, value (both text)."""
    return pd.DataFrame(list(open_snapshot(artefact, options).settings.items()), columns=["key", "value"])


def _timeline_rows(replay: Replay, instants: Integers) -> pd.DataFrame:
    """Return a table of the state of memory after each of the trace entries `instants`, which are in ascending order.

    See `timeline` for the columns.
    """
    time = replay.trace.entry("time")
    live = np.concatenate([[replay.start], replay.live_bytes])
    at_end = instants[0] == BEFORE  # no trace: the only row is the state at the snapshot
    table = {
        "entry": instants,
        "time_us": time[np.maximum(instants, 0)] if len(time) else np.zeros(len(instants), np.int64),
        "allocated": live[instants + 1],
        "reserved": np.array([replay.trace.reserved_bytes]) if at_end else replay.reserved[instants],
        "pending": np.array([replay.pending_at_end]) if at_end or not len(time) else replay.pending_bytes[instants],
    }
    layers = _bytes_by_category(replay, instants)
    failed = _failed_bytes(replay.trace, instants)
    return pd.DataFrame(table | dict(zip(CATEGORIES, layers, strict=True)) | {"oom": failed})


def _failed_bytes(trace: DeviceTrace, instants: Integers) -> Integers:
    failed = np.isin(instants, trace.where(Action.OOM))
    return np.where(failed, trace.entry("size")[np.maximum(instants, 0)], 0) if len(trace) else failed.astype(np.int64)


def _bytes_by_category(replay: Replay, instants: Integers) -> Integers:
    """Return the live bytes of each category after each of the trace entries `instants`: an array [category, instant].

    `instants` is in ascending order. The function sums the changes of all trace entries up to each instant, by the
    category that is stored for each entry. This takes a tenth of the time of going through the blocks.
    """
    lives, guess = replay.lifetimes, categorise(replay)
    older = guess.sums(lives, np.flatnonzero(lives.born == BEFORE))
    entries, count = int(instants[-1]) + 1, len(instants)
    following = np.repeat(np.arange(count, dtype=np.int32), np.diff(instants, prepend=BEFORE))
    key = following * len(CATEGORIES) + replay.trace.entry("entry_category")[:entries]
    changes: Integers = np.bincount(key, replay.changes[:entries], count * len(CATEGORIES)).reshape(count, -1)
    live: Integers = changes.cumsum(axis=0).astype(np.int64).T + np.array(list(older.values()))[:, None]
    return live


def steps(artefact: Artefact, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """Return a table of the memory use of the training steps that are completely in the trace, in order.

    Columns: step, first_entry, last_entry, peak_bytes, peak_index, end_bytes, and a column per category with its bytes
    at the end of the step. The categories sum to end_bytes.
    """
    replay = open_replay(artefact, options, device)
    uses = [msgspec.structs.asdict(use) for use in step_uses(replay, categorise(replay), whole_steps(replay.trace))]
    rows = [use | use.pop("end_categories") for use in uses]
    return pd.DataFrame(rows, columns=[*StepUse.__struct_fields__[:-1], *CATEGORIES])


def clock(
    artefact: Artefact, options: store.Options | None = None, device: int = 0, logged: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Return a table that maps trace entries to training steps: points (entry, step), see `replay.step_clock`."""
    return step_clock(open_snapshot(artefact, options).device(device), logged)


def times(artefact: Artefact, options: store.Options | None = None, device: int = 0) -> Integers:
    """Return the time of each trace entry in µs since the first one, ascending; empty if the trace has no times."""
    time = open_snapshot(artefact, options).device(device).entry("time").astype(np.int64)
    # Files that were edited or merged may step back in time.
    ascending: Integers = np.maximum.accumulate(time)
    return ascending - ascending[0] if len(time) and ascending[-1] > ascending[0] else ascending[:0]


def categories(
    artefact: Artefact, options: store.Options | None = None, device: int = 0, entry: int | None = None
) -> pd.DataFrame:
    """Return a table of the bytes by category after trace entry `entry` (None: the peak).

    Columns: category, bytes, blocks.
    """
    replay = open_replay(artefact, options, device)
    guess = categorise(replay)
    rows = _alive_after(replay, entry)
    sums = guess.sums(replay.lifetimes, rows)
    count = np.bincount(guess.category[rows], minlength=len(CATEGORIES))
    return pd.DataFrame({"category": list(sums), "bytes": list(sums.values()), "blocks": count})


def _alive_after(replay: Replay, entry: int | None) -> Integers:
    return replay.lifetimes.alive(replay.peak[1] if entry is None else entry)


def top_stacks(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    entry: int | None = None,
    limit: int = 20,
) -> pd.DataFrame:
    """Return a table of the stacks that allocated most of the bytes alive after trace entry `entry` (None: the peak).

    Columns: bytes, count, category, label, frames, operation, name (see `model.TopStack`).
    """
    snapshot = open_snapshot(artefact, options)
    replay = Replay(snapshot.device(device))
    stacks = largest_stacks(snapshot, replay.lifetimes, categorise(replay), _alive_after(replay, entry), limit)
    columns = ["bytes", "count", "category", "label", "frames", "operation", "name"]
    return pd.DataFrame([[getattr(stack, name) for name in columns] for stack in stacks], columns=columns)


def tree(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    by: str = "module",
    entry: int | None = None,
    depth: int | None = None,
) -> pd.DataFrame:
    """Return the memory alive after trace entry `entry` (None: the peak) as a tree of groups of blocks.

    The blocks are grouped by `category`, `module`, `line` or `stack`. See `grouping.owner_tree` for the columns.
    """
    return owner_tree(group_live_blocks(open_replay(artefact, options, device), by, entry), depth)


def live_blocks(artefact: Artefact, entry: int, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """Return a table of the blocks alive after a trace entry (see `allocator_state.blocks_at`)."""
    return allocator_state.blocks_at(open_replay(artefact, options, device), entry)


def segments(artefact: Artefact, entry: int, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """Return a table of the reserved address ranges after a trace entry, adjacent ones joined.

    Columns: address, bytes.
    """
    ranges = allocator_state.segments_at(open_snapshot(artefact, options).device(device), entry)
    return pd.DataFrame(ranges, columns=["address", "bytes"])


def source_files(artefact: Artefact, options: store.Options | None = None) -> set[str]:
    snapshot = open_snapshot(artefact, options)
    return {snapshot.text(int(number)) for number in np.unique(snapshot.columns["frame_file"])}


def blocks_of_address(
    artefact: Artefact, address: int, options: store.Options | None = None, device: int = 0
) -> pd.DataFrame:
    return allocator_state.blocks_of_address(open_replay(artefact, options, device), address)


def blocks(artefact: Artefact, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """Return a table of every block of the snapshot, free ones included, in order of address.

    Columns: segment (its address), segment_bytes, stream, pool, address, size, requested (bytes), state, frame.
    """
    snapshot = open_snapshot(artefact, options)
    trace = snapshot.device(device)
    c = snapshot.columns
    arenas, segment = BlockArenas(Replay(trace)), trace.block("segment")
    arena: Column = c["segment_arena"][segment]
    table = pd.DataFrame(
        {
            "segment": c["segment_address"][segment],
            "segment_bytes": c["segment_total"][segment],
            "stream": arenas.streams[arena],
            "pool": arenas.pool_names[arena],
            "address": trace.block("address"),
            "size": trace.block("size"),
            "requested": trace.block("requested"),
            "state": np.array(_STATE_NAMES, object)[trace.block("state")],
            "frame": allocator_state.texts_of(trace.block("stack"), snapshot.frames.line),
        }
    )
    return table.sort_values(["segment", "address"], ignore_index=True)
