"""From an artefact to its columns, read once and kept."""

from functools import lru_cache
from pathlib import Path

from analyzers import store
from analyzers.memory.model import Snapshot
from analyzers.memory.replay.lifetimes import Replay
from analyzers.run import Artefact

READER = "analyzers.memory.digest"
KEPT = 2
"""Replays that stay in memory: a face asks for window after window of the same device."""


def opened(artefact: Artefact, options: store.Options | None = None) -> Snapshot:
    """The snapshot in an artefact.

    Raises:
        InputError: It cannot be read.
    """
    return Snapshot(store.load([artefact.path], READER, options))


def replayed(artefact: Artefact, options: store.Options | None = None, device: int = 0) -> Replay:
    """The replay of one of its devices.

    Raises:
        InputError: It cannot be read.
    """
    return kept(artefact.path, store.cache_key([artefact.path], READER), options or store.Options(), device)


@lru_cache(KEPT)
def kept(path: Path, _key: str, options: store.Options, device: int) -> Replay:
    """`_key` changes with the file."""
    return Replay(Snapshot(store.load([path], READER, options)).device(device))
