"""Compute the JSON documents of recorded runs without sentences: they must stay equal when the wording changes.

`python tests/documents.py` writes them again, after an intended change of numbers.
"""

import gzip
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
FIXTURES = TESTS / "fixtures"
KEPT = FIXTURES / "documents.json.gz"
PROSE = {
    "check",
    "lacking",
    "title",
    "headline",
    "tested",
    "why",
    "next",
    "sentence",
    "missing",
    "text",
    "detail",
    "because",
    "model",
    "problems",
    "version",
}
"""Keys whose values are sentences, or name the installed version: their words may change."""


def facts(value: Any) -> Any:
    """Return only the numbers, ids, classes and names of a document, with paths relative to the tests."""
    if isinstance(value, dict):
        return {key: facts(inner) for key, inner in value.items() if key not in PROSE}
    if isinstance(value, list):
        return [facts(inner) for inner in value]
    return value.replace(f"{TESTS}{os.sep}", "") if isinstance(value, str) else value


def recorded() -> list[Path]:
    """Return the folders of the recorded runs."""
    return sorted(
        path for path in FIXTURES.iterdir() if path.is_dir() and path.name not in ("traces", "other_trainers")
    )


def documents(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (`folder/analyzer`, document) for every analyzer that has data of a recorded run."""
    from analyzers.errors import WorkbenchError
    from analyzers.rooms import JOINED, ROOMS, ask
    from analyzers.run import discover
    from analyzers.store import Options

    run = discover(folder)
    for door in (*(name for name, room in ROOMS.items() if room.kinds), JOINED):
        try:
            report = ask(door, run, Options())
        except WorkbenchError:
            continue
        yield f"{folder.name}/{door}", facts(json.loads(report.json()))


def kept() -> dict[str, dict[str, Any]]:
    """Return the stored documents."""
    stored: dict[str, dict[str, Any]] = json.loads(gzip.decompress(KEPT.read_bytes()))
    return {name: facts(document) for name, document in stored.items()}


if __name__ == "__main__":
    sys.path.insert(0, str(TESTS.parent))
    written = {name: document for folder in recorded() for name, document in documents(folder)}
    KEPT.write_bytes(gzip.compress(json.dumps(written, sort_keys=True).encode(), mtime=0))
