"""The reader of snapshots: the columns of a file, and beside them every answer that needs no other file.

Answering in the child that reads spares whoever opens the file again the work, and touching most of the columns.
"""

import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers import unpickle
from analyzers.columns import Column, UnsavedColumns
from analyzers.memory.answers.describe import describe
from analyzers.memory.categories.categorise import Guess, categorise
from analyzers.memory.model import DeviceTrace, Snapshot
from analyzers.memory.reading import reader as parsing
from analyzers.memory.replay.arenas import Placed
from analyzers.memory.replay.lifetimes import BEFORE, Replay

VERSION = zlib.crc32(b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.rglob("*.py"))))
"""The answers change when anything in this room does."""


def read(paths: list[Path]) -> tuple[dict[str, Column], dict[str, Any]]:
    """The columns of `read.read` and the derived ones, and in `meta` the answers: `devices`, `lives` (rows of each).

    Raises:
        InputError: Not readable, or not of a snapshot's structure.
        HostileInput: It asks for more than data.
    """
    columns, meta = parsing.read(paths)
    snapshot = Snapshot(UnsavedColumns(columns, meta))
    replays = [Replay(snapshot.device(number)) for number in snapshot.devices]
    with unpickle.gc_paused():
        guesses = [categorise(replay) for replay in replays]
        placed = [Placed(replay) for replay in replays]
        derived = [derive(*each) for each in zip(replays, guesses, placed, strict=True)]
        columns |= {name: np.concatenate([part[name] for part in derived]) for name in derived[0]}
        answers = [describe(*each) for each in zip(replays, guesses, placed, strict=True)]
    return columns, meta | {
        "devices": msgspec.to_builtins(answers),
        "lives": [len(part["life_born"]) for part in derived],
    }


def derive(replay: Replay, guess: Guess, placed: Placed) -> dict[str, Column]:
    """Columns of one device: a row an entry (`live`, `held_place`, `kind`), a row a block that lived (`life_*`)."""
    lives = replay.lifetimes
    return {
        "live": replay.live,
        "held_place": placed.of_entry,
        "kind": kinds(replay.trace, lives.born, lives.died, guess.category),
        "life_born": lives.born.astype(np.int32),
        "life_died": lives.died.astype(np.int32),
        "life_addr": lives.addr,
        "life_size": lives.size,
        "life_stack": lives.stack.astype(np.int32),
        "life_category": lives.category,
        "life_label": lives.label.astype(np.int32),
        "life_place": placed.of_life,
        "life_freed_stack": lives.freed_stack,
        "life_kind": guess.category,
        "life_rule": guess.rule,
    }


def kinds(trace: DeviceTrace, born: Column, died: Column, category: Column) -> Column:
    """For each entry that allocates or frees a block that block's category; 0 for the others, which change nothing."""
    kind = np.zeros(len(trace), np.int8)
    inside = born != BEFORE
    kind[born[inside]] = category[inside]
    ended = died < len(trace)
    kind[died[ended]] = category[ended]
    return kind
