"""Convert text logs to columns of events: the reader that `analyzers.store` runs in a child process.

Rows of `event.*` are events in the order of the files and their lines. Rows of `rank.*` are the ranks that each file
shows, with their last step. Texts are in `meta`: for each field a list with one item per event.
"""

import itertools
import re
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from analyzers.case.facts import EventKind, LogEvent
from analyzers.errors import InputError
from analyzers.files import read_json
from analyzers.log_signs import split_hint
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.lines import NO_PREFIX, Position
from analyzers.logs.reading.roster import UNRANKED
from analyzers.logs.reading.scanner import Scanner, scan
from analyzers.logs.reading.tracebacks import FRAME, Raised
from analyzers.store import code_version

_MOST_SHOWN_BYTES = 1 << 16
_HEADS_AT_MOST, _PART_OF_HEAD = 1 << 18, 4000


def _read_error_file(path: Path) -> Scanner:
    """Return a `Scanner` whose only event is the exception in torchrun's `error.json`; no event without an exception.

    Raises:
        InputError: The file is not JSON.
    """
    scanner = Scanner(year=1970, lines=1)
    try:
        content = read_json(path)
    except ValueError as problem:
        raise InputError(f"{path.name}: {problem}", "check that the file was copied whole") from problem
    error = content.get("message") if isinstance(content, dict) else None
    error = {"message": error} if isinstance(error, str) else error
    if not isinstance(error, dict):
        return scanner
    extra = error.get("extraInfo")
    extra = extra if isinstance(extra, dict) else {}
    _add_error(
        scanner, str(error.get("message", "")), str(extra.get("py_callstack", "")), str(extra.get("timestamp", ""))
    )
    return scanner


def _add_error(scanner: Scanner, message: str, callstack: str, stamp: str) -> None:
    """Add the exception of an error file as an event to `scanner`.

    `message` is its class and text, `callstack` its traceback, and `stamp` its time in whole Unix seconds. The fraction
    of the second is not recorded, so the time of the event is the end of this second.
    """
    name, _, text = next(iter(message.strip().splitlines()), "").partition(": ")
    if not name:
        return
    frames = [(m[1], int(m[2]), m[3] or "") for m in FRAME.finditer(callstack)]
    raised = Raised(name, text, frames, [], hint=split_hint(message)[1] or None)
    scanner.clock = (int(stamp) + 1) * 1_000_000_000 if re.fullmatch(r"\d{1,10}", stamp) else 0
    at = last_line(callstack or message)
    scanner.add_exception(raised, at, NO_PREFIX)
    # `add_exception` skips exceptions that launchers raise, but this file has no other error to show.
    if not scanner.events:
        scanner.add(Found(EventKind.EXCEPTION), message, at)
    scanner.events.change(0, time_ns=scanner.clock or None)


def last_line(text: str) -> Position:
    """Return where in `error.json` the last line of a traceback is, which names the exception.

    The line number is always 1, because the file holds the whole traceback in its first line.
    """
    chunk = text.rstrip().encode(errors="replace")[-_MOST_SHOWN_BYTES:]
    return Position(chunk, chunk.rfind(b"\n") + 1, 1)


_HOUSE = Path(__file__).parents[2]
VERSION = code_version(_HOUSE / "logs") ^ code_version(_HOUSE / "case") ^ code_version(_HOUSE / "failures")
KINDS = list(EventKind)
_NUMBERS = ("rank", "time_ns", "line", "step", "seq", "count", "attempt")
TEXTS = ("message", "group", "source", "function", "excerpt", "details")
ABSENT = -1


def read(paths: list[Path]) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Return the columns and the metadata of the logs at `paths`.

    Columns `event.*` have a row per event, columns `rank.*` a row per file and rank that it shows. The metadata has
    the texts of each event; for each row of `rank.*` the last line (`last_lines`), the last line with a step
    (`step_lines`) and the last short lines (`said`); and for each file how it was read, such as its number of lines
    and whether it is binary.
    """
    files: list[dict[str, Any]] = []
    scanners: list[Scanner] = []
    for path in paths:
        scanner, problem = _read_one(path)
        scanners.append(scanner)
        about = {"lines": scanner.lines, "binary": scanner.binary, "problem": problem, "skipped": scanner.skipped}
        files.append({**about, "left_out": scanner.events.left_out, "world_size": scanner.roster.world_size})
        files[-1]["unread"], files[-1]["unread_count"] = scanner.unread.kept, scanner.unread.count
        files[-1]["attempt"] = scanner.attempt
        files[-1]["rccl"] = scanner.nccl.is_other_library
    columns = _event_columns(scanners) | _roster_columns(scanners)
    events = [event for scanner in scanners for event in scanner.events]
    texts = {name: [getattr(event, name) or "" for event in events] for name in TEXTS}
    facts = [msgspec.to_builtins(event.facts) for event in events]
    lines = [seen.line for scanner in scanners for _, seen in scanner.roster.in_order()]
    said = [list(seen.said) for scanner in scanners for _, seen in scanner.roster.in_order()]
    meta = {"files": files, "facts": facts, "chains": [event.chain for event in events], "last_lines": lines}
    meta["heads"] = _heads(scanners)
    meta["calls"] = [event.calls for event in events]
    meta["said"] = said
    meta["rows"] = [
        [asdict(row) for row in (*scanner.roster.first_rows, *scanner.roster.last_rows)] for scanner in scanners
    ]
    meta["nccl"] = [msgspec.to_builtins(scanner.nccl.found()) for scanner in scanners]
    meta["step_lines"] = [seen.step_line for scanner in scanners for _, seen in scanner.roster.in_order()]
    return columns, meta | texts


def _heads(scanners: list[Scanner]) -> list[str]:
    """Return the first parts of the logs that are kept as they are, without those that repeat another one.

    They are divided, because a text of an artefact is stored up to some length only.
    """
    heads = list(dict.fromkeys(scanner.head for scanner in scanners if scanner.head))
    ends = itertools.accumulate(map(len, heads))
    whole = "\n".join(head for head, end in zip(heads, ends, strict=True) if end <= _HEADS_AT_MOST)
    return [whole[at : at + _PART_OF_HEAD] for at in range(0, len(whole), _PART_OF_HEAD)]


def _read_one(path: Path) -> tuple[Scanner, str]:
    """Return (scanner that has read a log, why the log could not be read); the reason is empty if it could."""
    try:
        if re.fullmatch(r"error\.json", path.name):
            return _read_error_file(path), ""
        return scan(path), ""
    except (OSError, EOFError) as error:
        return Scanner(year=1970), str(error)


def _event_columns(scanners: list[Scanner]) -> dict[str, np.ndarray[Any, Any]]:
    """Return the integer fields of the events of all files as int64 arrays: `event.rank`, `event.step`, ...

    A missing value is `ABSENT`.
    """
    events = [
        (file, event, clock)
        for file, s in enumerate(scanners)
        for event, clock in zip(s.events, s.events.clocks, strict=True)
    ]
    columns = {f"event.{name}": integers(value_of(event, name) for _, event, _ in events) for name in _NUMBERS}
    columns["event.file"] = integers(file for file, _, _ in events)
    columns["event.clock_ns"] = integers(clock for _, _, clock in events)
    columns["event.kind"] = integers(KINDS.index(event.kind) for _, event, _ in events)
    return columns


def _roster_columns(scanners: list[Scanner]) -> dict[str, np.ndarray[Any, Any]]:
    """Return int64 columns with a row per file and rank: the file's index, the rank, its last step, and a line number.

    The line number is that of the last line with a step. Lines without a rank have the rank `UNRANKED`; a missing step
    is `ABSENT`.
    """
    seen = [(file, rank, seen) for file, s in enumerate(scanners) for rank, seen in s.roster.in_order()]
    return {
        "rank.file": integers(file for file, _, _ in seen),
        "rank.rank": integers(UNRANKED if rank is None else rank for _, rank, _ in seen),
        "rank.step_line": integers(seen.step_number for _, _, seen in seen),
        "rank.step": integers(ABSENT if seen.step is None else seen.step for _, _, seen in seen),
    }


def value_of(event: LogEvent, name: str) -> int:
    """Return the numeric field `name` of an event; `ABSENT` if it is None."""
    value = getattr(event, name)
    return ABSENT if value is None else int(value)


def integers(values: Iterable[int]) -> np.ndarray[Any, Any]:
    return np.fromiter(values, dtype=np.int64)
