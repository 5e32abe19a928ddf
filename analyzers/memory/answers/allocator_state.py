"""The allocator at any entry of a trace: its segments and the blocks in them; the life of one address."""

from typing import Any

import numpy as np
import pandas as pd

from analyzers.columns import Column
from analyzers.memory.answers.stacks import shown
from analyzers.memory.categories.categorise import categorise
from analyzers.memory.model import DeviceTrace
from analyzers.memory.reading.reader import ACTION_OF, CATEGORIES
from analyzers.memory.replay.arenas import Placed
from analyzers.memory.replay.lifetimes import Replay
from analyzers.memory.replay.reserved import GROWS, SHRINKS

FREE_REQUESTED = ACTION_OF["free_requested"]
UNIT = np.uint64(512)
Ranges = list[tuple[int, int]]


def segments_at(trace: DeviceTrace, entry: int) -> Ranges:
    """(address, bytes) of the reserved ranges after an entry, neighbours joined."""
    return joined(ranges_at(trace, entry))


def ranges_at(trace: DeviceTrace, entry: int) -> Ranges:
    """The reserved ranges as they were taken: those at the end, walked backwards."""
    c = trace.snapshot.columns
    ranges = [(int(c["segment_address"][s]), int(c["segment_total"][s])) for s in trace.segments]
    action = trace.entry("action")
    changed = np.flatnonzero(np.isin(action, [*GROWS, *SHRINKS]))
    for index in changed[changed > entry][::-1]:
        address, size = int(trace.entry("addr")[index]), int(trace.entry("size")[index])
        if action[index] in SHRINKS:
            ranges.append((address, size))
        else:
            ranges = [part for one in ranges for part in without(one, address, address + size)]
    return ranges


def without(one: tuple[int, int], start: int, stop: int) -> Ranges:
    """What is left of a range when `start` to `stop` is cut out."""
    low, high = one[0], one[0] + one[1]
    if stop <= low or high <= start:
        return [one]
    left = [(low, start - low)] if low < start else []
    return [*left, (stop, high - stop)] if stop < high else left


def joined(ranges: Ranges) -> Ranges:
    found: Ranges = []
    for address, size in sorted(ranges):
        if found and found[-1][0] + found[-1][1] == address:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((address, size))
    return found


def blocks_at(replay: Replay, entry: int) -> pd.DataFrame:
    """The blocks alive after an entry, in order of address.

    Columns: segment (the reserved range around it; 0: none known), segment_bytes, stream, pool, address, requested,
    state (active or pending_free), category, label, born (entry; -1: before the first), frame.
    """
    lives, guess, trace = replay.lifetimes, categorise(replay), replay.trace
    rows = lives.alive(entry)
    rows = rows[np.argsort(lives.addr[rows], kind="stable")]
    placed = Placed(replay)
    place = placed.of_life[rows]
    owner = around(segments_at(trace, entry), lives.addr[rows])
    return pd.DataFrame(
        owner
        | {
            "stream": placed.streams[place],
            "pool": placed.named("pool")[place],
            "address": lives.addr[rows],
            "requested": lives.size[rows],
            "state": np.where(pending(replay, rows, entry), "pending_free", "active"),
            "category": np.array(CATEGORIES, object)[guess.category[rows]],
            "label": named(lives.label[rows], trace.snapshot.text),
            "born": lives.born[rows],
            "frame": named(lives.stack[rows], trace.snapshot.frames.line),
        }
    )


def free_at(replay: Replay, entry: int) -> pd.DataFrame:
    """The free pieces of the segments after an entry, the largest first; none where segments are made up (CPU).

    Blocks are taken to fill whole units of 512 bytes, as the CUDA allocator gives them.

    Columns: address, bytes, segment, segment_bytes, split (others use the segment, so that it cannot be given back).
    """
    trace, lives = replay.trace, replay.lifetimes
    ranges = [] if trace.snapshot.made_up_segments else sorted(ranges_at(trace, entry))
    if trace.snapshot.columns["segment_expandable"][trace.segments].any():
        ranges = joined(ranges)  # neighbours that were mapped one by one are one segment
    rows = lives.alive(entry)
    rows = rows[np.argsort(lives.addr[rows], kind="stable")]
    place = around(ranges, lives.addr[rows])
    inside = place["segment_bytes"] > 0
    start, last = lives.addr[rows][inside], (place["segment"] + place["segment_bytes"])[inside]
    stop = np.minimum(start + (lives.size[rows][inside].astype(np.uint64) + UNIT - 1) // UNIT * UNIT, last)
    segment, size = np.array(ranges, np.uint64).reshape(-1, 2).T
    # Between two neighbours, or one and the edge of its segment, what begins the k-th piece and what ends it.
    begins, ends = np.sort(np.concatenate([segment, stop])), np.sort(np.concatenate([segment + size, start]))
    found = around(ranges, begins) | {"address": begins, "bytes": ends.astype(np.int64) - begins.astype(np.int64)}
    table = pd.DataFrame(found | {"split": found["bytes"].astype(np.uint64) < found["segment_bytes"]})
    table = table[table["bytes"] > 0].sort_values(["bytes", "address"], ascending=[False, True], ignore_index=True)
    return table[["address", "bytes", "segment", "segment_bytes", "split"]]


def around(ranges: Ranges, addresses: Column) -> dict[str, Column]:
    """The range that each address lies in."""
    starts, sizes = np.array(ranges, np.uint64).reshape(-1, 2).T
    place = np.searchsorted(starts, addresses, side="right")
    starts, sizes = np.insert(starts, 0, 0), np.insert(sizes, 0, 0)
    inside = addresses - starts[place] < sizes[place]
    return {"segment": np.where(inside, starts[place], 0), "segment_bytes": np.where(inside, sizes[place], 0)}


def pending(replay: Replay, rows: Column, entry: int) -> Column:
    """Whether a block's release had been asked for by then: it waits for a stream."""
    trace, lives = replay.trace, replay.lifetimes
    asked = np.flatnonzero(trace.entry("action")[: entry + 1] == FREE_REQUESTED)
    order = asked[np.argsort(trace.entry("addr")[asked], kind="stable")]  # by address, then by time
    place = np.searchsorted(trace.entry("addr")[order], lives.addr[rows], side="right") - 1
    if not len(order):
        return np.zeros(len(rows), bool)
    last = order[np.maximum(place, 0)]
    same: Column = (place >= 0) & (trace.entry("addr")[last] == lives.addr[rows])
    return same & (last > lives.born[rows])


def named(numbers: Column, name: Any) -> Column:
    """The text of each number, every text made once."""
    known, inverse = np.unique(numbers, return_inverse=True)
    return np.array([name(int(number)) for number in known] or [""], object)[inverse.reshape(-1)]


def life_of(replay: Replay, address: int) -> pd.DataFrame:
    """Every block that ever held an address, in order of time.

    Columns: born, died (entries; -1: before the first, the number of entries: alive at the end), address, requested,
    category, label, frames (of the allocation; of the release where `freed_stack`), freed_stack.
    """
    lives, guess, snapshot = replay.lifetimes, categorise(replay), replay.trace.snapshot
    wanted = np.uint64(address)
    # A block of no bytes holds its own address.
    rows = np.flatnonzero((lives.addr <= wanted) & (wanted - lives.addr < np.maximum(lives.size, 1).astype(np.uint64)))
    rows = rows[np.argsort(lives.born[rows], kind="stable")]
    return pd.DataFrame(
        {
            "born": lives.born[rows],
            "died": lives.died[rows],
            "address": lives.addr[rows],
            "requested": lives.size[rows],
            "category": np.array(CATEGORIES, object)[guess.category[rows]],
            "label": named(lives.label[rows], snapshot.text),
            "frames": [shown(snapshot, int(stack)) for stack in lives.stack[rows]],
            "freed_stack": lives.freed_stack[rows],
        }
    )
