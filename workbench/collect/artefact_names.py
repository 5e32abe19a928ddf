"""Decide by the name of a file in a run folder whether it is sent to the home folder, and accepted there."""

import re
from pathlib import PurePosixPath

FOLDERS = (
    *("dumps", "steps", "logs", "health", "values", "not_finite", "tb", "profile_traces", "memory_snapshot"),
    *("comm_traces", "comm_trace", "structured_logs", "profiling"),
)
"""The folders in which our recorders and torchtitan write files, those that explain a hang first."""
LOOSE = re.compile(r"run\.json|[^/]*\.(?:log|out|err|jsonl)|slurm-\d[^/]*")
"""Matches the names of artefacts that are directly in the run folder."""
WEIGHTS = (".safetensors", ".distcp", ".pt", ".pth", ".ckpt")
GROWING = (".jsonl", ".log", ".out", ".err")
"""The suffixes of files that are written by appending."""
DEEPEST, NAME_BYTES, PATH_BYTES = 8, 200, 1000


def is_artefact(path: str) -> bool:
    """Return whether a relative path names an artefact that may be sent: no checkpoint, no hidden file, no `..`."""
    names = path.split("/")
    if len(names) > DEEPEST or len(path.encode(errors="replace")) > PATH_BYTES or not all(map(is_plain, names)):
        return False
    if len(names) == 1:
        return bool(LOOSE.fullmatch(path))
    return names[0] in FOLDERS and PurePosixPath(path).suffix not in WEIGHTS


def is_plain(name: str) -> bool:
    """Return whether a name is a single visible file name that is safe to print: not `..`, no control characters."""
    return name.isprintable() and not name.startswith(".") and 0 < len(name.encode(errors="replace")) <= NAME_BYTES


def only_grows(path: str) -> bool:
    """Return whether a file is written by appending, so that parts that were already sent stay valid."""
    return path.endswith(GROWING) or path.rpartition("/")[2].startswith("slurm-")


def urgency(path: str) -> tuple[int, str]:
    """Return a sort key for files by their use for a verdict: dumps first, then steps and logs, then large files."""
    first = path.split("/", 1)[0]
    return (FOLDERS.index(first) + 1 if first in FOLDERS else 0), path
