"""Read torchrun's `error.json`: the exception of one worker, written by `@record` or by this project's recorders."""

import re
from pathlib import Path

from analyzers.errors import InputError
from analyzers.files import read_json
from analyzers.log_signs.own_hints import split_hint
from analyzers.logs.model import EventKind
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.prefixes import NO_PREFIX
from analyzers.logs.reading.scanner import Scanner
from analyzers.logs.reading.text import Position
from analyzers.logs.reading.tracebacks import FRAME, Raised

_MOST_SHOWN_BYTES = 1 << 16


def read_error_file(path: Path) -> Scanner:
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
