"""Find the files of a run folder that are brought together: artefacts, no checkpoints, nothing hidden, no links."""

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from analyzers.run import SKIPPED_FOLDERS

_FOLDERS = (
    *("dumps", "steps", "logs", "health", "values", "not_finite", "tb", "profile_traces", "memory_snapshot"),
    *("comm_traces", "comm_trace", "structured_logs", "profiling"),
)
"""The folders in which our recorders and torchtitan write files, those that explain a hang first."""
_LOOSE = re.compile(r"run\.json|[^/]*\.(?:log|out|err|jsonl)|slurm-\d[^/]*")
"""Matches the names of artefacts that are directly in the run folder."""
WEIGHTS = (".safetensors", ".distcp", ".pt", ".pth", ".ckpt")
_MOST_FILES = 50_000
DEEPEST, _NAME_BYTES, _PATH_BYTES = 8, 200, 1000


def _is_artefact(path: str) -> bool:
    """Return whether a relative path names an artefact that may be sent: no checkpoint, no hidden file, no `..`."""
    names = path.split("/")
    if len(names) > DEEPEST or len(path.encode(errors="replace")) > _PATH_BYTES or not all(map(is_plain, names)):
        return False
    if len(names) == 1:
        return bool(_LOOSE.fullmatch(path))
    return names[0] in _FOLDERS and PurePosixPath(path).suffix not in WEIGHTS


def is_plain(name: str) -> bool:
    """Return whether a name is a single visible file name that is safe to print: not `..`, no control characters."""
    return (
        name.isprintable()
        and "/" not in name
        and not name.startswith(".")
        and 0 < len(name.encode(errors="replace")) <= _NAME_BYTES
    )


def urgency(path: str) -> tuple[int, str]:
    """Return a sort key for files by their use for a verdict: dumps first, then steps and logs, then large files."""
    first = path.split("/", 1)[0]
    return (_FOLDERS.index(first) + 1 if first in _FOLDERS else 0), path


def artefacts_below(folder: Path) -> Iterator[str]:
    """Yield the relative paths of the artefacts below a run folder; links are left out."""
    seen = 0
    for here, folders, names in os.walk(folder):
        below = Path(here).relative_to(folder)
        folders[:] = sorted(name for name in folders if _is_wanted(below / name))
        for path in (str(below / name) for name in sorted(names)):
            seen += 1
            if seen > _MOST_FILES:
                return
            if _is_artefact(path) and _is_file(folder / path):
                yield path


def _is_wanted(folder: Path) -> bool:
    """Return whether a folder, relative to the run folder, may contain artefacts."""
    return folder.name not in SKIPPED_FOLDERS and len(folder.parts) < DEEPEST and _is_artefact(str(folder / "x"))


def _is_file(path: Path) -> bool:
    """Return whether a path is a regular file and not a link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
