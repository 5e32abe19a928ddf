"""Reconstruct the allocator's segments, blocks and free memory after a trace entry; find all blocks at an address."""

import re
from collections.abc import Callable

import numpy as np
import pandas as pd

from analyzers.columns import Column, Integers, Mask
from analyzers.memory.arenas import BlockArenas, enclosing_segments
from analyzers.memory.categorise import categorise
from analyzers.memory.lifetimes import BEFORE, Replay
from analyzers.memory.phases import stacks_with_any
from analyzers.memory.snapshot import ACTIONS, CATEGORIES, RESERVING, RETURNING, Action, DeviceTrace, category_names
from analyzers.memory.stacks import stack_lines

UNIT = np.uint64(512)
"""The number of bytes to a multiple of which the allocator rounds up each request (kMinBlockSize)."""

Range = tuple[int, int]
"""A range of addresses, as (first address, length in bytes)."""


def segments_at(trace: DeviceTrace, entry: int) -> list[Range]:
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
    return _describe_blocks(replay, rows).assign(
        frames=pd.Series(frames, dtype=object), freed_stack=lives.freed_stack[rows]
    )


def _describe_blocks(replay: Replay, rows: Integers) -> "pd.DataFrame":
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


_SIZE_QUERY = re.compile(r"(>=|<=)?\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)?", re.IGNORECASE)
_ADDRESS_QUERY = re.compile(r"0x[0-9a-fA-F]{1,16}")
UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
_COMPARE: dict[str | None, Callable[[Integers, float], Mask]] = {
    ">=": np.greater_equal,
    "<=": np.less_equal,
    None: np.equal,
}

Span = tuple[int, int, int, int]
"""A reserved range of addresses with its lifetime.

It is (address, bytes, trace entry that reserved the range, trace entry that released it).
"""


def events(replay: Replay, first: int, count: int, text: str = "") -> pd.DataFrame:
    """Return a table of `count` trace entries, from index `first` on.

    If `text` is given, only the entries that match it (`_matching_entries`) are counted and returned. Columns: entry,
    time_us, action, address (for the action `oom`: the free bytes of the device), bytes, stream, pool, category (of the
    block that the entry allocates or frees; else empty), label, frame (the innermost frame of the user's code).
    """
    trace, arenas = replay.trace, BlockArenas(replay)
    rows = _matching_entries(replay, text)[max(first, 0) : max(first, 0) + max(count, 0)]
    changes, of_block = replay.changes[rows] != 0, arenas.by_entry[rows]
    arena = np.where(of_block < 0, trace.entry("arena")[rows], of_block)
    return pd.DataFrame(
        {
            "entry": rows,
            "time_us": trace.entry("time")[rows],
            "action": np.array(ACTIONS, object)[trace.entry("action")[rows]],
            "address": trace.entry("addr")[rows],
            "bytes": trace.entry("size")[rows],
            "stream": arenas.streams[arena],
            "pool": arenas.pool_names[arena],
            "category": np.where(changes, category_names(trace.entry("entry_category")[rows]), ""),
            "label": texts_of(trace.entry("label")[rows], trace.snapshot.text),
            "frame": texts_of(trace.entry("stack")[rows], trace.snapshot.frames.line),
        }
    )


def _matching_entries(replay: Replay, text: str) -> Integers:
    """Return the indexes of the trace entries that match a text; all entries for an empty text.

    An entry matches if its action contains `text`, or if its block matches the query (`search_blocks`).
    """
    every, wanted = np.arange(len(replay.trace)), text.strip()
    if not wanted:
        return every
    lives, block = replay.lifetimes, matching_blocks(replay, wanted)
    by_action = np.array([wanted.casefold() in name for name in ACTIONS])[replay.trace.entry("action")]
    return every[by_action | np.isin(every, lives.born[block]) | np.isin(every, lives.died[block])]


def segment_lives(trace: DeviceTrace, window: tuple[int, int] | None, limit: int) -> pd.DataFrame:
    """Return a table of the reserved address ranges that existed in a window of trace entries, the largest first.

    `window` is (first entry, end), None for the whole trace; at most `limit` rows are returned. Parts of an expandable
    segment that were mapped separately have rows of their own. Columns: address, bytes, born and died (the trace
    entries that reserved and released the range; -1: reserved before the trace; the number of entries: still reserved
    at the end), stream, pool, expandable (False also if the segment was released, because its kind is then not
    recorded).
    """
    spans = np.array(_segment_spans(trace), np.int64).reshape(-1, 4)
    low, high = window or (BEFORE, len(trace))
    spans = spans[(spans[:, 2] < high) & (spans[:, 3] > low)]
    spans = spans[np.lexsort((spans[:, 2], spans[:, 0], -spans[:, 1]))][:limit]
    address, size, born, died = spans.T
    arena, expandable = _arenas_of_spans(trace, spans)
    arenas = BlockArenas(Replay(trace))
    return pd.DataFrame(
        {
            "address": address.astype(np.uint64),
            "bytes": size,
            "born": born,
            "died": died,
            "stream": arenas.streams[arena],
            "pool": arenas.pool_names[arena],
            "expandable": expandable,
        }
    )


def _segment_spans(trace: DeviceTrace) -> list[Span]:
    """Return every address range that was ever reserved, with the trace entries that reserved and released it.

    The function walks backwards from the segments at the end of the trace. An expandable segment is one segment at the
    end but was mapped part by part, and an unmapping may remove only a part of one mapping. So a range is split where
    an entry covers only a part of it.

    Example: 0-40 is reserved at the end. Walking back, entry 7 mapped 20-40 and entry 2 mapped 0-20. This gives two
    ranges, reserved at 7 and at 2, both still reserved at the end.
    """
    ranges = zip(trace.segment("address").tolist(), trace.segment("total").tolist(), strict=True)
    # Start address -> (bytes, entry that gives the range back): the ranges that exist at the entry looked at.
    present = {start: (size, len(trace)) for start, size in ranges}
    spans: list[Span] = []
    action, addr, size = (trace.entry(name) for name in ("action", "addr", "size"))
    for index in np.flatnonzero(np.isin(action, [*RESERVING, *RETURNING]))[::-1].tolist():
        at, length = int(addr[index]), int(size[index])
        if action[index] in RETURNING:
            present[at] = length, index
        else:
            spans += _take_out(present, at, length, index)
    return [*spans, *((start, length, BEFORE, died) for start, (length, died) in present.items())]


def _take_out(present: dict[int, tuple[int, int]], at: int, length: int, born: int) -> list[Span]:
    """Remove the `length` bytes at address `at` from the reserved ranges `present`; return the removed pieces as spans.

    `present` maps the address of each range to (length, trace entry that releases it). If a range is removed only in
    part, the rest of it stays in `present`. A span is (address, length, `born`, trace entry that releases it); `born`
    is the trace entry that reserved these bytes.
    """
    spans: list[Span] = []
    for start, (size, died) in overlapping(present, at, length):
        low, high = max(start, at), min(start + size, at + length)
        del present[start]
        spans.append((low, high - low, born, died))
        if start < low:
            present[start] = low - start, died
        if high < start + size:
            present[high] = start + size - high, died
    return spans


def overlapping(present: dict[int, tuple[int, int]], at: int, length: int) -> list[tuple[int, tuple[int, int]]]:
    """Return the items of `present` (address: (length, entry)) whose range overlaps the `length` bytes at address `at`.

    In most cases `present` has exactly this range, so this case is checked first.
    """
    if at in present and present[at][0] == length:
        return [(at, present[at])]
    return [(start, entry) for start, entry in present.items() if start < at + length and at < start + entry[0]]


def _arenas_of_spans(trace: DeviceTrace, spans: Integers) -> tuple[Integers, Mask]:
    """Return the index of the arena of each reserved address range, and a mask of the ranges in expandable segments.

    An arena is a (stream, pool) pair. `spans` has one row per range: address, bytes, and the trace entries that
    reserved (born) and released it (died).
    """
    address, _, born, died = spans.T
    c, recorded = trace.snapshot.columns, trace.entry("arena")
    entry = np.where(born != BEFORE, born, died)
    arena = np.zeros(len(entry), np.int64)
    arena[entry < len(recorded)] = recorded[entry[entry < len(recorded)]]
    # Of ranges that exist at the end the segments say more than the entries, which had no pool before torch 2.12.
    segment = np.where(died == len(trace), enclosing_segments(trace, address.astype(np.uint64)), -1)
    known = segment >= 0
    arena[known] = c["segment_arena"][segment[known]]
    expandable = np.zeros(len(entry), bool)
    expandable[known] = c["segment_expandable"][segment[known]]
    return arena, expandable


def search_blocks(replay: Replay, text: str, limit: int) -> pd.DataFrame:
    """Return a table of the blocks that match a query, among all blocks of the trace, the largest first.

    The query `0x7f..` finds the blocks that contained this address. `1048576`, `2 MiB`, `>=64MiB` or `<=512` finds
    blocks by size. Any other text is searched in the frames, label and category of each block, ignoring case. At most
    `limit` rows are returned. Columns: born and died (the trace entries that allocated and freed the block), address,
    requested (bytes), category, label, frame.
    """
    lives = replay.lifetimes
    rows = np.flatnonzero(matching_blocks(replay, text.strip()))
    rows = rows[np.lexsort((lives.born[rows], -lives.size[rows]))][:limit]
    frames = texts_of(lives.stack[rows], replay.trace.snapshot.frames.line)
    return _describe_blocks(replay, rows).assign(frame=frames)


def matching_blocks(replay: Replay, text: str) -> Mask:
    """Return a mask over all blocks of the trace: True for the blocks that match a query (see `search_blocks`)."""
    if _ADDRESS_QUERY.fullmatch(text):
        return replay.lifetimes.containing(int(text, 16))
    if query := _SIZE_QUERY.fullmatch(text):
        wanted = float(query[2]) * UNITS[(query[3] or "B").lower()]
        return _COMPARE[query[1]](replay.lifetimes.size, wanted)
    return _mentioning(replay, text.casefold())


def _mentioning(replay: Replay, text: str) -> Mask:
    """Return a mask over all blocks of the trace: True for blocks with `text` in their frames, label or category.

    Case is ignored; `text` is in lower case.
    """
    lives, snapshot = replay.lifetimes, replay.trace.snapshot
    numbers = range(len(snapshot.columns["frame_name"]))
    frames = np.array([text in str(snapshot.frames.frame(number)).casefold() for number in numbers], bool)
    labels, inverse = np.unique(lives.label, return_inverse=True)
    in_label: Mask = np.array([text in snapshot.text(label).casefold() for label in labels.tolist()], bool)[inverse]
    in_category: Mask = np.array([text in name for name in CATEGORIES])[categorise(replay).category]
    in_stack: Mask = stacks_with_any(snapshot, frames)[lives.stack]
    return in_stack | in_label | in_category
