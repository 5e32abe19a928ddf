"""How well the rules tell what a block is: the noted categories of our own snapshots are hidden, guessed and compared.

    python benchmarks/categories.py PATH ...

PATH is a run folder or a snapshot that our recorder wrote. Bytes are those of all blocks that ever lived in the trace.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np

from analyzers import store
from analyzers.memory.categories import categorise
from analyzers.memory.model import Snapshot
from analyzers.memory.read import CATEGORIES, CATEGORY_OF, UNTAGGED
from analyzers.memory.replay import Replay
from analyzers.memory.tables import Column, Fresh
from analyzers.run import Kind, discover

READER = "analyzers.memory.read"


def hidden(columns: dict[str, Column], meta: dict[str, Any]) -> Fresh:
    """The columns as they would be had nobody noted a category."""
    untagged = {name: np.full_like(columns[name], UNTAGGED) for name in ("category", "older_category")}
    return Fresh(columns | untagged, meta | {"ours": meta["ours"] | {"exact": False}})


def confusion(path: Path) -> Column:
    """Bytes by (noted category, guessed category)."""
    loaded = store.load([path], READER)
    columns, meta = dict(loaded.items()), loaded.meta
    found = np.zeros((len(CATEGORIES), len(CATEGORIES)), np.int64)
    for number in Snapshot(Fresh(columns, meta)).devices:
        told = Replay(Snapshot(Fresh(columns, meta)).device(number)).lifetimes
        guess = categorise(Replay(Snapshot(hidden(columns, meta)).device(number)))
        noted = told.category != UNTAGGED
        np.add.at(found, (told.category[noted], guess.category[noted]), told.size[noted])
    return found


def main() -> None:
    files = [artefact.path for path in sys.argv[1:] for artefact in discover(Path(path)).of(Kind.SNAPSHOT)]
    found = sum((confusion(file) for file in files), np.zeros((len(CATEGORIES), len(CATEGORIES)), np.int64))
    print(f"{len(files)} snapshots, {found.sum() / 1e6:.1f} MB\n")
    print(f"{'noted':<17}{'MB':>9}{'right':>9}{'labelled':>9}{'precise':>9}   most often taken for")
    unknown = CATEGORY_OF["unknown"]
    for kind, name in enumerate(CATEGORIES):
        row, total = found[kind], found[kind].sum()
        wrong = np.where(np.arange(len(row)) == kind, 0, row)
        mistaken = CATEGORIES[wrong.argmax()] if wrong.any() else ""
        precise = share(row[kind], found[:, kind].sum())
        parts = f"{share(row[kind], total):>9}{share(total - row[unknown], total):>9}{precise:>9}"
        print(f"{name:<17}{total / 1e6:9.1f}{parts}   {mistaken}")
    print(f"{'all':<17}{found.sum() / 1e6:9.1f}{share(found.trace(), found.sum()):>9}", end="")
    print(f"{share(found.sum() - found[:, unknown].sum(), found.sum()):>9}")


def share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"


if __name__ == "__main__":
    main()
