"""What faces draw of one snapshot, as small tables."""

from itertools import pairwise

import numpy as np
import pandas as pd

from analyzers import store
from analyzers.memory.categories import categorise
from analyzers.memory.groups import held
from analyzers.memory.model import DeviceTrace, Snapshot
from analyzers.memory.places import Placed
from analyzers.memory.read import CATEGORIES
from analyzers.memory.replay import BEFORE, Replay
from analyzers.memory.report import READER
from analyzers.memory.reserved import reserved
from analyzers.memory.stacks import shown
from analyzers.memory.stacks import top_stacks as largest_stacks
from analyzers.memory.state import blocks_at, life_of, segments_at
from analyzers.memory.tables import Column
from analyzers.memory.tree import tree as tree_of
from analyzers.run import Artefact

STATE_NAMES = ("inactive", "active", "pending_free")


def opened(artefact: Artefact, options: store.Options | None = None) -> Snapshot:
    """The snapshot in an artefact.

    Raises:
        InputError: It cannot be read.
    """
    return Snapshot(store.load([artefact.path], READER, options))


def timeline(
    artefact: Artefact,
    options: store.Options | None = None,
    device: int = 0,
    buckets: int = 200,
    window: tuple[int, int] | None = None,
) -> pd.DataFrame:
    """Allocated bytes over the entries `window` (first, beyond last; all by default), at most `buckets` rows.

    Columns: entry, time_us, allocated, reserved, a column a category (they sum to allocated), oom (one failed there).
    Each row is one instant that really was: of its bucket the one with the most allocated, so every peak survives.
    Without a trace the single row is the state at the snapshot, its entry -1.
    """
    trace = opened(artefact, options).device(device)
    replay = Replay(trace)
    first, last = window or (0, len(trace))
    first, last = max(first, 0), min(last, len(trace))
    if first >= last:
        return frame(replay, np.array([BEFORE]), np.array([False]))
    edges = np.unique(np.linspace(first, last, min(buckets, last - first) + 1).astype(np.int64))
    instants = [low + int(replay.live[low:high].argmax()) for low, high in pairwise(edges)]
    failed = trace.where("oom")
    count = np.searchsorted(failed, edges)
    return frame(replay, np.array(instants), np.diff(count) > 0)


def frame(replay: Replay, instants: Column, failed: Column) -> pd.DataFrame:
    """The rows of a timeline at ascending instants."""
    time = replay.trace.entry("time")
    live = np.concatenate([[replay.start], replay.live])
    table = {
        "entry": instants,
        "time_us": time[np.maximum(instants, 0)] if len(time) else np.zeros(len(instants), np.int64),
        "allocated": live[instants + 1],
        "reserved": reserved_at(replay.trace, instants),
    }
    layers = by_category(replay, instants)
    return pd.DataFrame(table | dict(zip(CATEGORIES, layers, strict=True)) | {"oom": failed})


def reserved_at(trace: DeviceTrace, instants: Column) -> Column:
    if instants[0] == BEFORE:
        return np.array([trace.reserved_bytes])
    found: Column = reserved(trace)[instants]
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


def categories(
    artefact: Artefact, options: store.Options | None = None, device: int = 0, entry: int | None = None
) -> pd.DataFrame:
    """Bytes by category after `entry` (the peak by default). Columns: category, bytes, blocks."""
    replay = Replay(opened(artefact, options).device(device))
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
    return tree_of(held(Replay(opened(artefact, options).device(device)), by, entry), depth)


def state(artefact: Artefact, entry: int, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """The blocks alive after any entry, and the segments around them; see `state.blocks_at`."""
    return blocks_at(Replay(opened(artefact, options).device(device)), entry)


def segments(artefact: Artefact, entry: int, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """The reserved ranges after any entry, neighbours joined. Columns: address, bytes."""
    ranges = segments_at(opened(artefact, options).device(device), entry)
    return pd.DataFrame(ranges, columns=["address", "bytes"])


def life(artefact: Artefact, address: int, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """Every block that ever held an address; see `state.life_of`."""
    return life_of(Replay(opened(artefact, options).device(device)), address)


def blocks(artefact: Artefact, options: store.Options | None = None, device: int = 0) -> pd.DataFrame:
    """Every block at the snapshot, in order of address.

    Columns: segment (its address), segment_bytes, stream, pool, address, size, requested, state, frame.
    """
    snapshot = opened(artefact, options)
    trace = snapshot.device(device)
    c = snapshot.columns
    placed, segment = Placed(Replay(trace)), trace.block("segment")
    place = c["segment_place"][segment]
    stacks, inverse = np.unique(trace.block("stack"), return_inverse=True)
    innermost = np.array([next(iter(shown(snapshot, int(stack))), "") for stack in stacks], object)
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
            "frame": innermost[inverse],
        }
    )
    return table.sort_values(["segment", "address"], ignore_index=True)
