"""From an artefact to its columns, read once and kept."""

from analyzers import store
from analyzers.memory.model import Snapshot
from analyzers.run import Artefact

READER = "analyzers.memory.digest"


def opened(artefact: Artefact, options: store.Options | None = None) -> Snapshot:
    """The snapshot in an artefact.

    Raises:
        InputError: It cannot be read.
    """
    return Snapshot(store.load([artefact.path], READER, options))
