"""What faces draw of one snapshot, as small tables."""

from itertools import pairwise

import msgspec
import numpy as np
import pandas as pd

from analyzers import store
from analyzers.columns import Column
from analyzers.errors import InputError
from analyzers.memory.answers.allocator_state import blocks_at, free_at, life_of, named, segments_at
from analyzers.memory.answers.history import events_of, found, segment_lives
from analyzers.memory.answers.owner_tree import tree as tree_of
from analyzers.memory.answers.stacks import top_stacks as largest_stacks
from analyzers.memory.answers.step_use import alive_after, step_uses
from analyzers.memory.categories.allocation_phase import NAMES, phases_of
from analyzers.memory.categories.categorise import categorise
from analyzers.memory.categories.grouping import held
from analyzers.memory.loading import opened, replayed
from analyzers.memory.model import DeviceTrace, StepUse
from analyzers.memory.reading.reader import CATEGORIES
from analyzers.memory.replay.arenas import Placed, used
from analyzers.memory.replay.lifetimes import BEFORE, PENDING, Replay
from analyzers.memory.replay.step_clock import step_clock
from analyzers.run import Artefact

STATE_NAMES = ("inactive", "active", "pending_free")


def timeline(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    buckets: int = 200,
    window: tuple[int, int] | None = None,
) -> pd.DataFrame:
    """Allocated bytes over the entries `window` (first, beyond last; all by default), at most `buckets` rows.

    Columns: entry, time_us, allocated, reserved, pending (the part of allocated whose release waits for a stream), a
    column a category (they sum to allocated), oom (bytes of the request that failed at this very entry, else 0).
    Each row is one instant that really was: of its bucket the one with the most allocated, so every peak survives. A
    failed request has a row of its own, as far as these take no more than half of all: the last ones do.
    Without a trace the single row is the state at the snapshot, its entry -1.
    """
    replay = replayed(artefact, options, device)
    return frame(replay, highest(replay, buckets, window))


def highest(replay: Replay, buckets: int, window: tuple[int, int] | None) -> Column:
    """Of each of at most `buckets` stretches of entries the instant with the most allocated."""
    first, last = window or (0, len(replay.trace))
    first, last = max(first, 0), min(last, len(replay.trace))
    if first >= last:
        return np.array([BEFORE])
    failed = replay.trace.where("oom")
    failed = failed[(failed >= first) & (failed < last)]
    # What was freed just before the request failed would otherwise stand in its place, being higher.
    alone = failed[max(len(failed) - (buckets + 1) // 4, 0) :]
    even = np.linspace(first, last, min(buckets - 2 * len(alone), last - first) + 1).astype(np.int64)
    edges = np.unique(np.concatenate([even, alone, alone + 1]))
    return np.array([low + int(replay.live[low:high].argmax()) for low, high in pairwise(edges)])


def places(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    by: str = "pool",
    buckets: int = 200,
    window: tuple[int, int] | None = None,
) -> pd.DataFrame:
    """Allocated bytes by `pool`, `stream` or `phase` at the instants of `timeline`.

    Columns: entry, time_us, allocated, and one a pool (`0.0` is the common one, `?` what no file before torch 2.12
    tells), stream (`stream 0`) or phase (forward, backward, optimizer, other, `before the trace`: in which it was
    allocated); they sum to allocated, with `others` where there are too many to name.

    Raises:
        InputError: There is no such grouping.
    """
    if by not in ("pool", "stream", "phase"):
        raise InputError(f"cannot place by {by}", "choose one of pool, stream, phase")
    replay = replayed(artefact, options, device)
    instants = highest(replay, buckets, window)
    layers = by_phase(replay, instants) if by == "phase" else by_place(replay, instants, by)
    table = frame(replay, instants)[["entry", "time_us", "allocated"]]
    others = table["allocated"] - sum(layers.values())
    return table.assign(**layers, **({"others": others} if others.any() else {}))


def by_place(replay: Replay, instants: Column, by: str) -> dict[str, Column]:
    """Bytes after each of the instants by pool or stream, the one with the highest peak first."""
    placed = Placed(replay)
    names = placed.named(by)
    parts = {name: placed.part(np.flatnonzero(names == name)) for name in dict.fromkeys(names[used(placed)])}
    return {name: parts[name].after(instants) for name in sorted(parts, key=lambda name: -parts[name].peak[0])}


def by_phase(replay: Replay, instants: Column) -> dict[str, Column]:
    """Bytes after each of the instants by the phase in which they were allocated."""
    layers = alive_after(replay.lifetimes, phases_of(replay), len(NAMES), instants)
    return {NAMES[number]: layers[number] for number in NAMES}


def cached(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    window: tuple[int, int] | None = None,
    limit: int = 500,
) -> pd.DataFrame:
    """The life of every reserved range, mapped and unmapped parts too; see `history.segment_lives`."""
    return segment_lives(opened(artefact, options).device(device), window, limit)


def events(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    first: int = 0,
    count: int = 100,
    text: str = "",
) -> pd.DataFrame:
    """Entries as the allocator wrote them; see `history.events_of`."""
    return events_of(replayed(artefact, options, device), first, count, text)


def search(
    artefact: Artefact, text: str, options: store.Options | None = None, device: int = 0, limit: int = 100
) -> pd.DataFrame:
    """Blocks by frame, label, category, address or size; see `history.found`."""
    return found(replayed(artefact, options, device), text, limit)


def settings(artefact: Artefact, options: store.Options | None = None) -> pd.DataFrame:
    """The allocator's settings, empty where the file has none. Columns: key, value (both text)."""
    told: dict[str, str] = opened(artefact, options).columns.meta["settings"]
    return pd.DataFrame(list(told.items()), columns=["key", "value"])


def frame(replay: Replay, instants: Column) -> pd.DataFrame:
    """The rows of a timeline at ascending instants."""
    time = replay.trace.entry("time")
    live = np.concatenate([[replay.start], replay.live])
    table = {
        "entry": instants,
        "time_us": time[np.maximum(instants, 0)] if len(time) else np.zeros(len(instants), np.int64),
        "allocated": live[instants + 1],
        "reserved": reserved_at(replay, instants),
        "pending": replay.pending[instants] if len(time) and instants[0] != BEFORE else pending_at_end(replay.trace),
    }
    layers = by_category(replay, instants)
    return pd.DataFrame(table | dict(zip(CATEGORIES, layers, strict=True)) | {"oom": refused(replay.trace, instants)})


def refused(trace: DeviceTrace, instants: Column) -> Column:
    """Bytes of the request that failed at each instant, 0 where none did."""
    failed = np.isin(instants, trace.where("oom"))
    return np.where(failed, trace.entry("size")[np.maximum(instants, 0)], 0) if len(trace) else failed.astype(np.int64)


def pending_at_end(trace: DeviceTrace) -> Column:
    return np.array([trace.block("requested")[trace.block("state") == PENDING].sum()])


def reserved_at(replay: Replay, instants: Column) -> Column:
    if instants[0] == BEFORE:
        return np.array([replay.trace.reserved_bytes])
    found: Column = replay.reserved[instants]
    return found


def by_category(replay: Replay, instants: Column) -> Column:
    """Bytes alive at each of the ascending instants: (category, instant)."""
    lives, guess = replay.lifetimes, categorise(replay)
    older = guess.sums(lives, np.flatnonzero(lives.born == BEFORE))
    first, count = int(instants[-1]) + 1, len(instants)
    reached = np.repeat(np.arange(count, dtype=np.int32), np.diff(instants, prepend=BEFORE))
    key = reached * len(CATEGORIES) + replay.trace.entry("kind")[:first]
    changes = np.bincount(key, replay.changes[:first], count * len(CATEGORIES)).reshape(count, -1)
    held: Column = changes.cumsum(axis=0).astype(np.int64).T + np.array(list(older.values()))[:, None]
    return held


def steps(artefact: Artefact, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """The steps that the trace holds whole, in order.

    Columns: step, first_entry, last_entry, peak_bytes, peak_index, end_bytes, a column a category: the bytes at the
    step's end, which sum to end_bytes.
    """
    replay = replayed(artefact, options, device)
    uses = [msgspec.structs.asdict(use) for use in step_uses(replay, categorise(replay))]
    flat = [use | use.pop("end_categories") for use in uses]
    return pd.DataFrame(flat, columns=[*StepUse.__struct_fields__[:-1], *CATEGORIES])


def clock(
    artefact: Artefact, options: store.Options | None = None, device: int = 0, logged: pd.DataFrame | None = None
) -> pd.DataFrame:
    """Which entries lie in which step; see `clock.step_clock`."""
    return step_clock(opened(artefact, options).device(device), logged)


def categories(
    artefact: Artefact, options: store.Options | None = None, device: int = 0, entry: int | None = None
) -> pd.DataFrame:
    """Bytes by category after `entry` (the peak by default). Columns: category, bytes, blocks."""
    replay = replayed(artefact, options, device)
    guess = categorise(replay)
    rows = replay.lifetimes.alive(replay.peak[1] if entry is None else entry)
    sums = guess.sums(replay.lifetimes, rows)
    count = np.bincount(guess.category[rows], minlength=len(CATEGORIES))
    return pd.DataFrame({"category": list(sums), "bytes": list(sums.values()), "blocks": count})


def top_stacks(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    entry: int | None = None,
    limit: int = 20,
) -> pd.DataFrame:
    """What holds the most after `entry` (the peak by default). Columns: bytes, count, category, label, frames."""
    snapshot = opened(artefact, options)
    replay = Replay(snapshot.device(device))
    rows = replay.lifetimes.alive(replay.peak[1] if entry is None else entry)
    found = largest_stacks(snapshot, replay.lifetimes, categorise(replay), rows, limit)
    columns = ["bytes", "count", "category", "label", "frames"]
    return pd.DataFrame([[getattr(stack, name) for name in columns] for stack in found], columns=columns)


def tree(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    by: str = "module",
    entry: int | None = None,
    depth: int | None = None,
) -> pd.DataFrame:
    """What is alive after `entry` (the peak by default) by `category`, `module`, `line` or `stack`; see `tree.tree`."""
    return tree_of(held(replayed(artefact, options, device), by, entry), depth)


def state(artefact: Artefact, entry: int, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """The blocks alive after any entry, and the segments around them; see `state.blocks_at`."""
    return blocks_at(replayed(artefact, options, device), entry)


def segments(artefact: Artefact, entry: int, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """The reserved ranges after any entry, neighbours joined. Columns: address, bytes."""
    ranges = segments_at(opened(artefact, options).device(device), entry)
    return pd.DataFrame(ranges, columns=["address", "bytes"])


def free(
    artefact: Artefact, entry: int, options: store.Options | None = None, device: int = 0, limit: int = 500
) -> pd.DataFrame:
    """What was free after any entry, the largest piece first; see `state.free_at`."""
    return free_at(replayed(artefact, options, device), entry).head(limit)


def files(artefact: Artefact, options: store.Options | None = None) -> set[str]:
    """The source files that the stacks of a snapshot name."""
    snapshot = opened(artefact, options)
    return {snapshot.text(int(number)) for number in np.unique(snapshot.columns["frame_file"])}


def life(artefact: Artefact, address: int, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """Every block that ever held an address; see `state.life_of`."""
    return life_of(replayed(artefact, options, device), address)


def blocks(artefact: Artefact, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """Every block at the snapshot, in order of address.

    Columns: segment (its address), segment_bytes, stream, pool, address, size, requested, state, frame.
    """
    snapshot = opened(artefact, options)
    trace = snapshot.device(device)
    c = snapshot.columns
    placed, segment = Placed(Replay(trace)), trace.block("segment")
    place = c["segment_place"][segment]
    table = pd.DataFrame(
        {
            "segment": c["segment_address"][segment],
            "segment_bytes": c["segment_total"][segment],
            "stream": placed.streams[place],
            "pool": placed.named("pool")[place],
            "address": trace.block("address"),
            "size": trace.block("size"),
            "requested": trace.block("requested"),
            "state": np.array(STATE_NAMES, object)[trace.block("state")],
            "frame": named(trace.block("stack"), snapshot.frames.line),
        }
    )
    return table.sort_values(["segment", "address"], ignore_index=True)
