"""How ranks ended: by an error of their own, by a signal, or because of another rank."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from analyzers import run
from analyzers.hangs.model import Frame, user_frame
from analyzers.wording import place

ORDERLY = (-15, -2)
"""How a launcher ends the ranks that are left over."""
COMMUNICATION = re.compile(
    r"gloo|nccl|c10d|rendezvous|monitoredbarrier|processgroup|\bDist\w*Error|\w*store\b.*(?:get|wait)", re.IGNORECASE
)
"""What a rank's error speaks of when another rank is gone or does not come."""
CONNECTION = re.compile(r"connection (?:closed|reset|refused)|timed? ?out|socket|broken pipe", re.IGNORECASE)
"""The same, unless the user's own code raised it: data are read over connections too."""
TRACEBACK_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
WORKER = re.compile(r"(?P<launch>.*)/attempt_(?P<attempt>\d+)/(?P<local_rank>\d+)/[^/]+")
"""Where torchrun puts what a worker says."""
LOG_BYTES, LOG_LINES = 4096, 3


class ExitFile(msgspec.Struct):
    rank: int
    pid: int = 0
    step: int | None = None
    phase: str | None = None
    error: str = ""
    message: str = ""
    out_of_memory: bool = False
    traceback: list[Frame] = []
    time_ns: int = 0


@dataclass(frozen=True)
class Death:
    """The end of a rank. `victim`: it ended because of another rank."""

    rank: int
    how: str
    victim: bool
    time_ns: int = 0
    exit: ExitFile | None = None


def is_victim(gone: ExitFile) -> bool:
    """Whether a rank ended because another one did, or kept it waiting too long."""
    if gone.out_of_memory:
        return False
    text = f"{gone.error} {gone.message}"
    innermost = gone.traceback[0].filename if gone.traceback else "/torch/"
    return bool(COMMUNICATION.search(text) or ("/torch/" in innermost and CONNECTION.search(text)))


def exception_text(gone: ExitFile) -> str:
    line = user_frame(gone.traceback)
    where = f" at {line.name} ({place(line.filename, line.line)})" if line else ""
    return ("out of memory" if gone.out_of_memory else f"{gone.error}: {gone.message}"[:200]) + where


def errors(found: run.Run) -> list[tuple[ExitFile, str]]:
    """What torchrun's workers wrote of their ends in any attempt, and where; the folder tells the rank in its node."""
    workers = [(worker, a.path) for a in found.of(run.Kind.ERROR) if (worker := WORKER.fullmatch(str(a.path)))]
    read = [(read_error(path, int(worker["local_rank"])), str(path)) for worker, path in workers]
    return [(gone, path) for gone, path in read if gone]


def last_errors(found: run.Run) -> dict[int, ExitFile]:
    """Those of the last attempt, by rank."""
    files = of_workers(found.of(run.Kind.ERROR), last_attempt(found))
    return {rank: gone for rank, path in files.items() if (gone := read_error(path, rank))}


def log_files(found: run.Run) -> dict[int, Path]:
    """What each rank wrote to its standard error in the last attempt."""
    logs = [a for a in found.of(run.Kind.LOG) if a.path.name == "stderr.log"]
    return of_workers(logs, last_attempt(found))


def last_attempt(found: run.Run) -> int:
    said = (WORKER.fullmatch(str(a.path)) for a in found.of(run.Kind.ERROR, run.Kind.LOG))
    return max((int(worker["attempt"]) for worker in said if worker), default=0)


def of_workers(artefacts: Iterable[run.Artefact], attempt: int) -> dict[int, Path]:
    """By rank, which the folder gives within its node: nothing where there are several."""
    workers = [(worker, a.path) for a in artefacts if (worker := WORKER.fullmatch(str(a.path)))]
    if len({worker["launch"] for worker, _ in workers}) > 1:
        return {}
    return {int(worker["local_rank"]): path for worker, path in workers if int(worker["attempt"]) == attempt}


def read_error(path: Path, rank: int) -> ExitFile | None:
    """An `error.json`: {message: text} or {message: {message, extraInfo: {py_callstack, timestamp}}}."""
    try:
        content = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    told = content.get("message") if isinstance(content, dict) else None
    told = {"message": told} if isinstance(told, str) else told
    return exit_of(told, rank) if isinstance(told, dict) else None


def exit_of(told: dict[str, Any], rank: int) -> ExitFile:
    """As if the rank had written an exit file. Timestamps have whole seconds: it is over at the end of that one."""
    extra = told.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    first_line = next(iter(str(told.get("message", "")).strip().splitlines()), "")
    error, _, message = first_line.partition(": ")
    stamp = str(extra.get("timestamp", ""))
    frames = TRACEBACK_LINE.finditer(str(extra.get("py_callstack", "")))
    return ExitFile(
        rank=rank,
        error=error[:300],
        message=message[:300],
        out_of_memory="OutOfMemoryError" in error or error == "MemoryError",
        traceback=[Frame(f["name"], f["file"], int(f["line"])) for f in frames][::-1],
        time_ns=(int(stamp) + 1) * 1_000_000_000 if stamp.isdigit() else 0,
    )


def last_lines(log: Path) -> str:
    """How a log ends, as one line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    return " | ".join([line.strip() for line in lines if line.strip()][-LOG_LINES:])[:500]
