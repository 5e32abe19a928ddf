"""What happened to the allocator, entry by entry: the list of events, each segment's life, and finding a block."""

import re

import numpy as np
import pandas as pd

from analyzers.columns import Column
from analyzers.memory.answers.allocator_state import named
from analyzers.memory.categories.categorise import categorise
from analyzers.memory.model import DeviceTrace
from analyzers.memory.reading.frames import written
from analyzers.memory.reading.reader import ACTIONS, CATEGORIES
from analyzers.memory.replay.arenas import Placed, segment_around
from analyzers.memory.replay.lifetimes import BEFORE, Replay
from analyzers.memory.replay.reserved import GROWS, SHRINKS

SIZE = re.compile(r"(>=|<=)?\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB)?", re.IGNORECASE)
UNITS = {"b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


def events_of(replay: Replay, first: int, count: int, text: str = "") -> pd.DataFrame:
    """The entries `first` to `first + count`, of those that fit `text` where there is one (`entries_like`).

    Columns: entry, time_us, action, address (an `oom`: bytes left on the device), bytes, stream, pool, category (of the
    block; empty where none is meant), label, frame.
    """
    trace, placed = replay.trace, Placed(replay)
    rows = entries_like(replay, text)[max(first, 0) : max(first, 0) + max(count, 0)]
    changes, resolved = replay.changes[rows] != 0, placed.of_entry[rows]
    place = np.where(resolved < 0, trace.entry("place")[rows], resolved)
    kinds = np.array(CATEGORIES, object)[trace.entry("kind")[rows]]
    return pd.DataFrame(
        {
            "entry": rows,
            "time_us": trace.entry("time")[rows],
            "action": np.array([*ACTIONS, "unknown"], object)[trace.entry("action")[rows]],
            "address": trace.entry("addr")[rows],
            "bytes": trace.entry("size")[rows],
            "stream": placed.streams[place],
            "pool": placed.named("pool")[place],
            "category": np.where(changes, kinds, ""),
            "label": named(trace.entry("label")[rows], trace.snapshot.text),
            "frame": named(trace.entry("stack")[rows], trace.snapshot.frames.line),
        }
    )


def entries_like(replay: Replay, text: str) -> Column:
    """The entries whose action is called so, and those that allocate or free a block which `found` would find."""
    every, wanted = np.arange(len(replay.trace)), text.strip()
    if not wanted:
        return every
    lives, block = replay.lifetimes, matching(replay, wanted)
    named_so = np.array([wanted.casefold() in name for name in (*ACTIONS, "unknown")])[replay.trace.entry("action")]
    return every[named_so | np.isin(every, lives.born[block]) | np.isin(every, lives.died[block])]


def segment_lives(trace: DeviceTrace, window: tuple[int, int] | None, limit: int) -> pd.DataFrame:
    """The reserved ranges that existed in a window of entries, the largest first; mapped parts are rows of their own.

    Columns: address, bytes, born, died (entries; -1: before the first, the number of entries: there at the end),
    stream, pool, expandable (false where the segment is gone: nothing tells it then).
    """
    spans = np.array(spans_of(trace), np.int64).reshape(-1, 4)
    low, high = window or (BEFORE, len(trace))
    spans = spans[(spans[:, 2] < high) & (spans[:, 3] > low)]
    spans = spans[np.lexsort((spans[:, 2], spans[:, 0], -spans[:, 1]))][:limit]
    address, size, born, died = spans.T
    place, expandable = places_of(trace, address, born, died)
    placed = Placed(Replay(trace))
    return pd.DataFrame(
        {
            "address": address.astype(np.uint64),
            "bytes": size,
            "born": born,
            "died": died,
            "stream": placed.streams[place],
            "pool": placed.named("pool")[place],
            "expandable": expandable,
        }
    )


def spans_of(trace: DeviceTrace) -> list[tuple[int, int, int, int]]:
    """(address, bytes, born, died) of every reserved range: the end, walked backwards.

    An expandable segment is one at the end and was many when it grew, and an unmapping may cut what was mapped in one
    piece, so a range is split where an entry speaks of a part of it.
    """
    c = trace.snapshot.columns
    starts, sizes = c["segment_address"][trace.segments], c["segment_total"][trace.segments]
    there = {int(at): (int(size), len(trace)) for at, size in zip(starts, sizes, strict=True)}
    found: list[tuple[int, int, int, int]] = []
    action, addr, size = (trace.entry(name) for name in ("action", "addr", "size"))
    for index in np.flatnonzero(np.isin(action, [*GROWS, *SHRINKS]))[::-1].tolist():
        at, length = int(addr[index]), int(size[index])
        if action[index] in SHRINKS:
            there[at] = length, index
            continue
        for start, (held, died) in overlapping(there, at, length):
            low, high = max(start, at), min(start + held, at + length)
            del there[start]
            found.append((low, high - low, index, died))
            there |= {start: (low - start, died)} if start < low else {}
            there |= {high: (start + held - high, died)} if high < start + held else {}
    return [*found, *((start, held, BEFORE, died) for start, (held, died) in there.items())]


def overlapping(there: dict[int, tuple[int, int]], at: int, length: int) -> list[tuple[int, tuple[int, int]]]:
    """The ranges that share bytes with one; most often it is there as it is, which spares looking at all."""
    if at in there and there[at][0] == length:
        return [(at, there[at])]
    return [(start, one) for start, one in there.items() if start < at + length and at < start + one[0]]


def places_of(trace: DeviceTrace, address: Column, born: Column, died: Column) -> tuple[Column, Column]:
    """The place of each range, and whether it is part of an expandable segment."""
    c, told = trace.snapshot.columns, trace.entry("place")
    entry = np.where(born != BEFORE, born, died)
    place = np.zeros(len(entry), np.int32)
    place[entry < len(told)] = told[entry[entry < len(told)]]
    around = np.where(died == len(trace), segment_around(trace, address.astype(np.uint64)), -1)
    known = around >= 0
    place[known] = c["segment_place"][around[known]]
    expandable = np.zeros(len(entry), bool)
    expandable[known] = c["segment_expandable"][around[known]]
    return place, expandable


def found(replay: Replay, text: str, limit: int) -> pd.DataFrame:
    """Blocks that ever lived and match, the largest first.

    `0x7f..` is an address that the block held, `1048576`, `2 MiB`, `>=64MiB` or `<=512` its size; anything else is
    looked for in its frames, its label and its category, whatever the case.

    Columns: born, died (entries), address, requested, category, label, frame.
    """
    lives, guess, snapshot = replay.lifetimes, categorise(replay), replay.trace.snapshot
    rows = np.flatnonzero(matching(replay, text.strip()))
    rows = rows[np.lexsort((lives.born[rows], -lives.size[rows]))][:limit]
    return pd.DataFrame(
        {
            "born": lives.born[rows],
            "died": lives.died[rows],
            "address": lives.addr[rows],
            "requested": lives.size[rows],
            "category": np.array(CATEGORIES, object)[guess.category[rows]],
            "label": named(lives.label[rows], snapshot.text),
            "frame": named(lives.stack[rows], snapshot.frames.line),
        }
    )


def matching(replay: Replay, text: str) -> Column:
    lives = replay.lifetimes
    if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", text):
        return holding(replay, int(text, 16))
    if sized := SIZE.fullmatch(text):
        wanted = float(sized[2]) * UNITS[(sized[3] or "B").lower()]
        compare = {">=": np.greater_equal, "<=": np.less_equal, None: np.equal}[sized[1]]
        found: Column = compare(lives.size, wanted)
        return found
    return mentioning(replay, text.casefold())


def holding(replay: Replay, address: int) -> Column:
    """Whether each block held an address; one of no bytes holds its own."""
    lives, wanted = replay.lifetimes, np.uint64(address)
    inside: Column = (lives.addr <= wanted) & (wanted - lives.addr < np.maximum(lives.size, 1).astype(np.uint64))
    return inside


def mentioning(replay: Replay, text: str) -> Column:
    """Whether the frames, the label or the category of each block contain a text."""
    lives, c = replay.lifetimes, replay.trace.snapshot.columns
    texts = replay.trace.snapshot
    frames = [text in written(texts.frames.frame(number)).casefold() for number in range(len(c["frame_name"]))]
    seen = np.concatenate([[0], np.cumsum(np.array(frames, bool)[c["stack_frames"]])])
    in_stack = np.diff(seen[np.concatenate([[0], c["stack_end"]])]) > 0
    labels, inverse = np.unique(lives.label, return_inverse=True)
    in_label = np.array([text in texts.text(label).casefold() for label in labels.tolist()], bool)[inverse]
    in_category = np.array([text in name for name in CATEGORIES])[categorise(replay).category]
    found: Column = in_stack[lives.stack] | in_label | in_category
    return found
