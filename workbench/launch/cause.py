"""Find the cause of a failed job: the earliest error of any rank in any attempt.

An attempt is one start of all ranks; torchrun restarts them after a failure. torchrun's own summary shows the last
attempt, in which ranks often fail as a consequence of the first failure.
"""

import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

import msgspec

from analyzers.files import read_json

FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


class Cause(TypedDict):
    """The first error of a job, as stored under `cause` in `run.json`.

    Its fields are the rank, its host (`node`), type and message of the error, the source line (`file`), the path of the
    rank's log, and the time.
    """

    rank: int
    node: str
    error: str
    message: str
    file: str
    log: str
    time_ns: int


class ExtraInfo(msgspec.Struct):
    """The details that torch's error handler adds to an error message; `timestamp` is in whole Unix seconds."""

    py_callstack: str = ""
    timestamp: str | int = ""


class ErrorMessage(msgspec.Struct):
    """The error message in the `error.json` of a worker, as torch's error handler writes it."""

    message: str = ""
    extra: ExtraInfo | None = msgspec.field(name="extraInfo", default=None)


class ErrorFile(msgspec.Struct):
    """The content of an `error.json`, which torch writes when a worker (the process of a rank) fails.

    For some errors, `message` is a plain text.
    """

    message: ErrorMessage | str


def first_error(logs: Path, since: float, first_rank: int = 0) -> Cause | None:
    """Return the earliest error that a worker wrote below `logs` since the Unix time `since`; None if there is none.

    A worker is torchrun's word for the process of a rank. Its log folder has the name of its local rank. `first_rank`,
    the global rank of this node's local rank 0, is added to get the global rank.
    """
    causes = [cause for path in logs.glob("**/attempt_*/*/error.json") if (cause := _read_error(path, since))]
    cause = earliest(causes)
    if cause is not None:
        cause["rank"] += first_rank
    return cause


def earliest(causes: Iterable[Cause]) -> Cause | None:
    """Return the `Cause` with the earliest time; None if there is none."""
    return min(causes, key=lambda cause: cause["time_ns"], default=None)


def _read_error(path: Path, since: float) -> Cause | None:
    """Return the error in the `error.json` at `path`; None if it is invalid or older than the Unix time `since`.

    The rank in the result is the local rank.
    """
    changed_s = path.stat().st_mtime
    if changed_s < since:
        return None
    try:
        body = msgspec.convert(read_json(path), ErrorFile).message
    except (OSError, ValueError, msgspec.ValidationError):
        return None
    written = ErrorMessage(message=body) if isinstance(body, str) else body
    extra = written.extra or ExtraInfo()
    error, _, rest = written.message.partition(":")
    return Cause(
        rank=int(path.parent.name),
        node=socket.gethostname(),
        error=error,
        message=rest.strip() or written.message,
        file=_innermost_frame(extra.py_callstack),
        log=str(path.with_name("stderr.log")),
        time_ns=int(_failure_time_s(str(extra.timestamp), changed_s) * 1e9),
    )


def _failure_time_s(timestamp: str, changed_s: float) -> float:
    """Return the Unix time at which a worker failed, in seconds.

    `timestamp` is the time in the worker's error file, in whole seconds; `changed_s` is the file's modification time.
    Ranks often fail within the same second, so the result is the more precise `changed_s`. But if the file was modified
    after the second of `timestamp`, it is a copy, and the result is the end of that second.
    """
    return min(changed_s, int(timestamp) + 0.999999) if timestamp.isdecimal() else changed_s


def _innermost_frame(callstack: str) -> str:
    """Return the last frame of a traceback as `file:line function`; empty if the text `callstack` has no frame."""
    frames = FRAME.findall(callstack)
    return "{}:{} {}".format(*frames[-1]) if frames else ""


class GroupsFile(msgspec.Struct):
    """The fields of `groups_R.json` that are read here; the recorders write this file about rank R.

    The fields are the global and the local rank, and the path of the error file, which is in the rank's log folder.
    """

    rank: int
    local_rank: int
    error_file: str


def first_rank_here(dumps: Path, logs: Path) -> int | None:
    """Return the global rank of this node's local rank 0, from the recorders' files in `dumps`; None if unknown.

    `logs` is the log folder of this node's launch. If `groups_R.json` names a path in this folder, rank R runs on this
    node.
    """
    for path in dumps.glob("groups_*.json"):
        try:
            worker = msgspec.convert(read_json(path), GroupsFile)
        except (OSError, ValueError, msgspec.ValidationError):
            continue
        if logs.name in Path(worker.error_file).parts:
            return worker.rank - worker.local_rank
    return None
