"""The source behind a line that an artefact names, where that file is on this machine."""

import re
from collections.abc import Iterator
from pathlib import Path

from workbench.launch.plan import PACKAGE_ROOT

NAMED = re.compile(r"([^\s:()\"']+\.(?:py|pyx|cpp|cc|cu|cuh|h|hpp))(?::(\d+)|\((\d+)\))")
"""`path.py:41`, as stacks write it, or `path.py(41)`, as traces do."""
LARGEST = 8 << 20


def source_of(text: str) -> tuple[Path, int] | None:
    """The first file that a text names and this machine has, and the line."""
    for found in NAMED.finditer(text):
        for path in candidates(Path(found[1])):
            if path.is_file() and path.stat().st_size <= LARGEST:
                return path, int(found[2] or found[3])
    return None


def candidates(named: Path) -> Iterator[Path]:
    """The file as named, and what its last parts name here: a job may have run from another folder."""
    if named.is_absolute():
        yield named
    parts = named.parts[1:] if named.is_absolute() else named.parts
    for root in (Path.cwd(), PACKAGE_ROOT):
        for cut in range(max(1, len(parts) - 1)):
            yield root.joinpath(*parts[cut:])
