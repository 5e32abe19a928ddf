"""Read a snapshot file in a child process, and compute all results that need no other file.

The results are cached together with the columns: opening the same file again shows them at once.
"""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers import unpickle
from analyzers.columns import Column, Integers, UnsavedColumns
from analyzers.memory.arenas import BlockArenas
from analyzers.memory.categorise import Guess, categorise
from analyzers.memory.describe import describe
from analyzers.memory.lifetimes import BEFORE, Lifetimes, Replay
from analyzers.memory.reading import reader
from analyzers.memory.snapshot import DeviceTrace, Snapshot
from analyzers.store import code_version

VERSION = code_version(Path(__file__).parent)
"""A checksum of the code of the memory analyzer, which is a part of the cache's key.

Results change when any of its modules changes.
"""


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """Return the columns and the metadata of a snapshot file, and the results computed from them.

    `paths` holds the one file. The columns come from `reader.read` and `_derived_columns`. `meta["devices"]` has a
    `model.Device` for each device, without the fields that come from the file's path; `meta["lifetimes"]` has the
    number of rows that each device has in the `life_*` columns.

    Raises:
        InputError: The file is not readable, or does not have the structure of a snapshot.
        HostileInput: The file would run code, or has a structure that no recorder writes.
    """
    columns, meta = reader.read(paths)
    snapshot = Snapshot(UnsavedColumns(columns, meta))
    replays = [Replay(snapshot.device(number)) for number in snapshot.devices]
    with unpickle.gc_paused():
        guesses = [categorise(replay) for replay in replays]
        arenas = [BlockArenas(replay) for replay in replays]
        derived = [_derived_columns(*each) for each in zip(replays, guesses, arenas, strict=True)]
        columns |= {name: np.concatenate([part[name] for part in derived]) for name in derived[0]}
        answers = [describe(*each) for each in zip(replays, guesses, arenas, strict=True)]
    return columns, meta | {
        "devices": msgspec.to_builtins(answers),
        "lifetimes": [len(part["life_born"]) for part in derived],
    }


def _derived_columns(replay: Replay, guess: Guess, arenas: BlockArenas) -> dict[str, Column]:
    """Return the columns that are computed from one device's trace.

    `live_bytes`, `entry_arena` and `entry_category` have one row per trace entry. The columns `life_*` have one row per
    block that ever lived: the columns of `Lifetimes`, the block's arena (stream and pool), its category, and the rule
    that decided the category.
    """
    lives = replay.lifetimes
    return {
        "live_bytes": replay.live_bytes,
        "entry_arena": arenas.by_entry,
        "entry_category": _categories_of_entries(replay.trace, lives, guess.category),
        # int32 holds any entry or stack of a real file, at half the disk and page cache.
        "life_born": lives.born.astype(np.int32),
        "life_died": lives.died.astype(np.int32),
        "life_addr": lives.addr,
        "life_size": lives.size,
        "life_stack": lives.stack.astype(np.int32),
        "life_category": lives.category,
        "life_label": lives.label.astype(np.int32),
        "life_arena": arenas.by_block,
        "life_freed_stack": lives.freed_stack,
        "life_guess": guess.category,
        "life_rule": guess.rule,
    }


def _categories_of_entries(trace: DeviceTrace, lives: Lifetimes, category: Integers) -> Column:
    """Return, for each trace entry, the category of the block that it allocates or frees; 0 for other entries.

    0 is also the number of a category (parameters), so the value of other entries must not be used.
    """
    kind = np.zeros(len(trace), np.int8)
    inside = lives.born != BEFORE
    kind[lives.born[inside]] = category[inside]
    ended = lives.died < len(trace)
    kind[lives.died[ended]] = category[ended]
    return kind
