"""What torchrun keeps of its workers: `error.json` and logs, in folders that are named by the rank within a node."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from analyzers import run
from analyzers.hangs.model import Frame
from analyzers.hangs.reading.side_formats import ExitFile, GroupsFile, read_side

TRACEBACK_LINE = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>\S+)')
WORKER = re.compile(r"(?P<launch>.*)/attempt_(?P<attempt>\d+)/(?P<local_rank>\d+)/[^/]+")
LOG_BYTES, LOG_LINES = 4096, 3


@dataclass(frozen=True)
class Worker:
    """A file of one worker; `rank` is None where several nodes might be meant."""

    path: Path
    attempt: int
    rank: int | None


def workers(found: run.Run, kind: run.Kind) -> Iterator[Worker]:
    """The workers that files of a kind speak of."""
    parts = [(part, a.path) for a in found.of(kind) if (part := WORKER.fullmatch(str(a.path)))]
    groups = found.of(run.Kind.GROUPS) if parts else []
    sides = [(a.path, side) for a in groups if (side := read_side(a.path, GroupsFile))]
    launches = {part["launch"] for part, _ in parts}
    ranks = {launch: ranks_of(Path(launch), launches, sides) for launch in launches}
    first = first_ranks(found.manifest())
    for part, path in parts:
        local_rank, launch = int(part["local_rank"]), Path(part["launch"]).name
        if launch in first:
            yield Worker(path, int(part["attempt"]), first[launch] + local_rank)
            continue
        known = ranks[part["launch"]]
        yield Worker(path, int(part["attempt"]), local_rank if known is None else known.get(local_rank))


def first_ranks(manifest: dict[str, Any]) -> dict[str, int]:
    """The rank of each launch's first worker, as its launcher has written it down."""
    launches = manifest.get("launches")
    told = launches.items() if isinstance(launches, dict) else ()
    first = {name: one.get("first_rank") for name, one in told if isinstance(one, dict)}
    return {name: rank for name, rank in first.items() if isinstance(rank, int)}


def ranks_of(launch: Path, launches: set[str], sides: list[tuple[Path, GroupsFile]]) -> dict[int, int] | None:
    """The ranks of a launch by those within its node, from the side files of its run folder; None: the same."""
    told = [side for _, side in sides if launch.name in Path(side.error_file or "").parts]
    if told:
        return by_local_rank(told)
    home = launch.parent.parent
    if sum(Path(other).parent.parent == home for other in launches) > 1:
        return {}
    here = [side for path, side in sides if path.is_relative_to(home) and side.local_rank is not None]
    if not here:
        return None if len(launches) == 1 else {}
    known = by_local_rank(here)
    return known if len(known) == len(here) else {}


def by_local_rank(sides: Sequence[GroupsFile]) -> dict[int, int]:
    return {side.local_rank: side.rank for side in sides if side.local_rank is not None}


def errors(found: run.Run) -> list[tuple[ExitFile, str]]:
    """What workers wrote of their ends in any attempt, and where. Rank -1 is an unknown one."""
    read = [(read_error(w.path, -1 if w.rank is None else w.rank), str(w.path)) for w in workers(found, run.Kind.ERROR)]
    return [(gone, path) for gone, path in read if gone]


def last_errors(found: run.Run) -> dict[int, ExitFile]:
    """What workers wrote of their ends in the last attempt, by rank."""
    files = of_last_attempt(found, run.Kind.ERROR)
    return {rank: gone for rank, path in files.items() if (gone := read_error(path, rank))}


def log_files(found: run.Run) -> dict[int, Path]:
    """What each rank wrote to its standard error in the last attempt."""
    return of_last_attempt(found, run.Kind.LOG, "stderr.log")


def of_last_attempt(found: run.Run, kind: run.Kind, name: str | None = None) -> dict[int, Path]:
    every = [*workers(found, run.Kind.ERROR), *workers(found, run.Kind.LOG)]
    last = max((w.attempt for w in every), default=0)
    chosen = (w for w in workers(found, kind) if w.attempt == last and name in (None, w.path.name))
    return {w.rank: w.path for w in chosen if w.rank is not None}


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
