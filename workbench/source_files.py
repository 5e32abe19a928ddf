"""The source behind a line that an artefact names, where that file is on this machine."""

import os
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from workbench.python_path import PACKAGE_ROOT

NAMED = re.compile(r"([^\s:()\"']+\.(?:py|pyx|cpp|cc|cu|cuh|h|hpp))(?::(\d+)|\((\d+)\))")
"""`path.py:41`, as stacks write it, or `path.py(41)`, as traces do."""
LARGEST = 8 << 20
FILES_AT_MOST = 20_000
NOT_OURS = ("site-packages", "node_modules", "__pycache__")


def source_of(text: str) -> tuple[Path, int] | None:
    """The first file that a text names and this machine has, and the line."""
    for found in NAMED.finditer(text):
        for path in candidates(Path(found[1])):
            if path.is_file() and path.stat().st_size <= LARGEST:
                return path, int(found[2] or found[3])
    return None


def candidates(named: Path) -> Iterator[Path]:
    """The file as named, what its last parts name here, as a job may have run from another folder, and the only file
    below that ends like that, as verdicts tell no more than a file and its folder.
    """
    if named.is_absolute():
        yield named
    parts = named.parts[1:] if named.is_absolute() else named.parts
    for root in (Path.cwd(), PACKAGE_ROOT):
        for cut in range(max(1, len(parts) - 1)):
            yield root.joinpath(*parts[cut:])
    alike = endings(Path.cwd(), parts) or endings(PACKAGE_ROOT, parts)
    if len(alike) == 1:
        yield alike[0]


def endings(root: Path, parts: tuple[str, ...]) -> list[Path]:
    """The files below a folder whose paths end like that."""
    return [path for path in below(root).get(parts[-1], ()) if path.parts[-len(parts) :] == parts] if parts else []


@lru_cache(maxsize=4)
def below(root: Path) -> dict[str, list[Path]]:
    """Files of source below a folder by their names, of the first so many; hidden and foreign folders left out."""
    named: dict[str, list[Path]] = {}
    seen = 0
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in NOT_OURS and not name.startswith("."))
        for name in names:
            seen += 1
            if NAMED.fullmatch(f"{name}:1"):
                named.setdefault(name, []).append(Path(folder, name))
        if seen > FILES_AT_MOST:
            break
    return named
