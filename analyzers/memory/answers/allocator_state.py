"""Reconstruct the allocator's segments, blocks and free memory after a trace entry; find all blocks at an address."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from analyzers.columns import Column, Integers, Mask
from analyzers.memory.answers.stacks import stack_lines
from analyzers.memory.categories.categorise import categorise
from analyzers.memory.reading.schema import RESERVING, RETURNING, Action, category_names
from analyzers.memory.reading.snapshot import DeviceTrace
from analyzers.memory.replay.arenas import BlockArenas
from analyzers.memory.replay.lifetimes import Replay

if TYPE_CHECKING:
    import pandas as pd  # imported late: every report needs this module, few need its tables

UNIT = np.uint64(512)
"""The number of bytes to a multiple of which the allocator rounds up each request (kMinBlockSize)."""

Range = tuple[int, int]
"""A range of addresses, as (first address, length in bytes)."""


def segments_at(trace: DeviceTrace, entry: int) -> list[Range]:
    """Return the reserved address ranges after a trace entry, in order of address; adjacent ranges are joined."""
    return _join_adjacent(_ranges_at(trace, entry))


def _ranges_at(trace: DeviceTrace, entry: int) -> list[Range]:
    """Return the reserved address ranges after a trace entry, one per segment or mapped part of a segment.

    The segments at the end of the trace are known exactly. The function goes backwards from there: it adds each range
    that an entry released, and removes each range that an entry reserved.
    """
    ranges = list(zip(trace.segment("address").tolist(), trace.segment("total").tolist(), strict=True))
    action, addr, size = (trace.entry(name) for name in ("action", "addr", "size"))
    changed = np.flatnonzero(np.isin(action, [*RESERVING, *RETURNING]))
    for index in changed[changed > entry][::-1].tolist():
        start, length = int(addr[index]), int(size[index])
        if action[index] in RETURNING:
            ranges.append((start, length))
        else:
            ranges = [part for whole in ranges for part in _cut_out(whole, start, start + length)]
    return ranges


def _cut_out(whole: Range, start: int, stop: int) -> list[Range]:
    """Return the parts of the range `whole` outside of the addresses from `start` to `stop`: up to two ranges."""
    low, high = whole[0], whole[0] + whole[1]
    if stop <= low or high <= start:
        return [whole]
    before = [(low, start - low)] if low < start else []
    return [*before, (stop, high - stop)] if stop < high else before


def _join_adjacent(ranges: list[Range]) -> list[Range]:
    """Return the ranges in order of address; ranges that touch are joined into one."""
    joined: list[Range] = []
    for address, size in sorted(ranges):
        if joined and joined[-1][0] + joined[-1][1] == address:
            joined[-1] = (joined[-1][0], joined[-1][1] + size)
        else:
            joined.append((address, size))
    return joined


def _alive_by_address(replay: Replay, entry: int) -> Integers:
    """Return the blocks that are alive after trace entry `entry`, in order of address, as rows in `Lifetimes`."""
    rows = replay.lifetimes.alive(entry)
    return rows[np.argsort(replay.lifetimes.addr[rows], kind="stable")]


def blocks_at(replay: Replay, entry: int) -> "pd.DataFrame":
    """Return a table of the blocks that are alive after trace entry `entry`, in order of address.

    Columns: segment (address of the reserved range that contains the block; 0: unknown), segment_bytes, stream, pool,
    address, requested (bytes), state (active or pending_free), category, label, born (the trace entry that allocated
    the block; -1: before the trace), frame (the innermost frame of the user's code).
    """
    import pandas as pd

    lives, guess, trace = replay.lifetimes, categorise(replay), replay.trace
    rows = _alive_by_address(replay, entry)
    arenas = BlockArenas(replay)
    arena = arenas.by_block[rows]
    segment = _enclosing_ranges(segments_at(trace, entry), lives.addr[rows])
    return pd.DataFrame(
        segment
        | {
            "stream": arenas.streams[arena],
            "pool": arenas.pool_names[arena],
            "address": lives.addr[rows],
            "requested": lives.size[rows],
            "state": np.where(_is_pending(replay, rows, entry), "pending_free", "active"),
            "category": category_names(guess.category[rows]),
            "label": texts_of(lives.label[rows], trace.snapshot.text),
            "born": lives.born[rows],
            "frame": texts_of(lives.stack[rows], trace.snapshot.frames.line),
        }
    )


def free_at(replay: Replay, entry: int) -> "pd.DataFrame":
    """Return a table of the free ranges inside segments after trace entry `entry`, the largest first.

    The columns are the same as in the result of `free_ranges`.
    """
    import pandas as pd

    return pd.DataFrame(free_ranges(replay, entry))


def free_ranges(replay: Replay, entry: int) -> dict[str, Column]:
    """Return the free ranges inside segments after trace entry `entry`, the largest first.

    Columns: address, bytes, segment (its address), segment_bytes, split (True if the segment also contains live blocks,
    so that it cannot be released). The columns are empty for a recording on a CPU, which has no segments. A live block
    is assumed to fill whole units of 512 bytes, because the CUDA allocator rounds requests up.

    Example: a segment of 2048 bytes at 0 holds blocks at 512 (requested 300, so it ends at 1024) and at 1536 (500, ends
    at 2048). Free ranges begin at the segment's start and at each block's end, sorted 0, 1024, 2048; they end at each
    block's start and at the segment's end, sorted 512, 1536, 2048. Paired in order: 0-512, 1024-1536, and an empty one.
    """
    trace, lives = replay.trace, replay.lifetimes
    ranges = [] if trace.snapshot.made_up_segments else sorted(_ranges_at(trace, entry))
    if trace.segment("expandable").any():
        ranges = _join_adjacent(ranges)  # parts that were mapped one by one are one segment
    rows = _alive_by_address(replay, entry)
    around = _enclosing_ranges(ranges, lives.addr[rows])
    inside = around["segment_bytes"] > 0
    start, segment_end = lives.addr[rows][inside], (around["segment"] + around["segment_bytes"])[inside]
    stop = np.minimum(start + (lives.size[rows][inside].astype(np.uint64) + UNIT - 1) // UNIT * UNIT, segment_end)
    segment, size = np.array(ranges, np.uint64).reshape(-1, 2).T
    begins, ends = np.sort(np.concatenate([segment, stop])), np.sort(np.concatenate([segment + size, start]))
    free = ends.astype(np.int64) - begins.astype(np.int64)
    found = np.flatnonzero(free > 0)
    found = found[np.lexsort([begins[found], -free[found]])]
    columns = {"address": begins[found], "bytes": free[found]} | _enclosing_ranges(ranges, begins[found])
    return columns | {"split": columns["bytes"].astype(np.uint64) < columns["segment_bytes"]}


def _enclosing_ranges(ranges: list[Range], addresses: Column) -> dict[str, Column]:
    """Return, for each address, the first address and the bytes of the range that contains it.

    The columns are `segment` and `segment_bytes`; both are 0 if no range contains the address. `ranges` is in order of
    address.
    """
    starts, sizes = np.array(ranges, np.uint64).reshape(-1, 2).T
    position = np.searchsorted(starts, addresses, side="right")
    # Position 0 means before all ranges: an empty range stands there.
    starts, sizes = np.insert(starts, 0, 0), np.insert(sizes, 0, 0)
    inside = addresses - starts[position] < sizes[position]
    return {"segment": np.where(inside, starts[position], 0), "segment_bytes": np.where(inside, sizes[position], 0)}


def _is_pending(replay: Replay, rows: Integers, entry: int) -> Mask:
    """Return, for each of some blocks, whether a CUDA stream may still use it although the program freed it.

    The state is that after trace entry `entry`. `rows` are the blocks' rows in `Lifetimes`.
    """
    trace, lives = replay.trace, replay.lifetimes
    requests = np.flatnonzero(trace.entry("action")[: entry + 1] == Action.FREE_REQUESTED)
    order = requests[np.argsort(trace.entry("addr")[requests], kind="stable")]  # by address, then by time
    if not len(order):
        return np.zeros(len(rows), bool)
    position = np.searchsorted(trace.entry("addr")[order], lives.addr[rows], side="right") - 1
    last = order[np.maximum(position, 0)]
    requested: Mask = (position >= 0) & (trace.entry("addr")[last] == lives.addr[rows])
    # An earlier request was for an earlier block at the same address.
    return requested & (last > lives.born[rows])


def texts_of(numbers: Column, text_of: Callable[[int], str]) -> Column:
    """Return an array of `text_of(number)` for each of `numbers`; the function is called once per distinct number."""
    known, inverse = np.unique(numbers, return_inverse=True)
    return np.array([text_of(number) for number in known.tolist()] or [""], object)[inverse.reshape(-1)]


def blocks_of_address(replay: Replay, address: int) -> "pd.DataFrame":
    """Return a table of every block that ever contained an address, in order of time.

    Columns: born and died (the trace entries that allocated and freed the block; -1: allocated before the trace; the
    number of entries: alive at the end), address, requested (bytes), category, label, frames, freed_stack. `frames` is
    the stack that allocated the block, or, where `freed_stack` is True, the stack that freed it.
    """
    import pandas as pd

    lives, snapshot = replay.lifetimes, replay.trace.snapshot
    rows = np.flatnonzero(lives.containing(address))
    rows = rows[np.argsort(lives.born[rows], kind="stable")]
    frames = [stack_lines(snapshot, stack) for stack in lives.stack[rows].tolist()]
    return describe_blocks(replay, rows).assign(
        frames=pd.Series(frames, dtype=object), freed_stack=lives.freed_stack[rows]
    )


def describe_blocks(replay: Replay, rows: Integers) -> "pd.DataFrame":
    """Return a table of some blocks, given by their rows in `Lifetimes`.

    Columns: born and died (the trace entries that allocated and freed the block), address, requested (bytes),
    category, label.
    """
    import pandas as pd

    lives = replay.lifetimes
    return pd.DataFrame(
        {
            "born": lives.born[rows],
            "died": lives.died[rows],
            "address": lives.addr[rows],
            "requested": lives.size[rows],
            "category": category_names(categorise(replay).category[rows]),
            "label": texts_of(lives.label[rows], replay.trace.snapshot.text),
        }
    )
