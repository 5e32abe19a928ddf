"""Open a snapshot file: the file is read once, and its columns are then kept in the cache."""

from functools import lru_cache
from pathlib import Path

from analyzers import store
from analyzers.memory.lifetimes import Replay
from analyzers.memory.snapshot import Snapshot
from analyzers.run import Artefact

READER = "analyzers.memory.digest"
_REPLAYS_KEPT = 2
"""The number of replays that stay in memory: a user interface asks many questions of one, and a comparison needs 2."""


def open_snapshot(artefact: Artefact, options: store.Options | None = None) -> Snapshot:
    """Return the snapshot in a file, with its columns from the cache if it was read before.

    Raises:
        InputError: The file cannot be read.
    """
    return Snapshot(store.load([artefact.path], READER, options))


def open_replay(artefact: Artefact, options: store.Options | None = None, device: int = 0) -> Replay:
    """Return the replay of one device of a snapshot.

    Raises:
        InputError: The file cannot be read.
    """
    # The key changes with the file, so an edited file is read again although its path is the same.
    return _cached_replay(artefact.path, store.cache_key([artefact.path], READER), options or store.Options(), device)


@lru_cache(_REPLAYS_KEPT)
def _cached_replay(path: Path, _key: str, options: store.Options, device: int) -> Replay:
    """Return the replay of one device of a snapshot file; the last `_REPLAYS_KEPT` of them stay in memory.

    `_key` changes with the contents of the file, so that a changed file is read again.
    """
    return Replay(Snapshot(store.load([path], READER, options)).device(device))


def rank_of(snapshot: Snapshot, artefact: Artefact) -> int | None:
    """Return the rank that this project's recorder wrote into the file, or else the rank in the file's name."""
    recorded = snapshot.recorded_number("rank")
    return artefact.rank if recorded is None else recorded


def step_of(snapshot: Snapshot, artefact: Artefact) -> int | None:
    """Return the step that this project's recorder wrote into the file, or else the step in its folder's name."""
    recorded = snapshot.recorded_number("step")
    return artefact.step if recorded is None else recorded
