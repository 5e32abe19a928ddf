"""Read the lines of a log of any size as clean text, without colours, control characters and overlong parts."""

import gzip
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from analyzers.files import open_regular

CHUNK_BYTES = 1 << 22
LONGEST_LINE = 1 << 16
"""The most bytes of a line that is read completely; of longer lines, only the parts around possible errors are read."""
BEFORE, _AFTER = 512, 4096
_PARTS_AT_MOST = 8
_LONGEST_BEFORE = 1000
_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]")
"""Matches control characters except tab and line feed: a terminal must not get them, and no pattern needs them."""


@dataclass
class Position:
    """The position of a line in a log: the chunk of bytes that contains it, its offset there, and its line number."""

    chunk: bytes
    start: int
    number: int


def _open_log(path: Path) -> IO[bytes]:
    """Return a log opened for reading bytes; if it is gzipped, the bytes are decompressed."""
    file = open_regular(path)
    magic = file.read(2)
    file.seek(0)
    # GzipFile inflates as it is read: a bomb costs time, which the child's limit ends, not memory.
    return gzip.GzipFile(fileobj=file) if magic == b"\x1f\x8b" else file  # type: ignore[return-value]


def chunks(path: Path) -> Iterator[bytes]:
    """Yield a log in chunks of bytes that end where a line ends; only a line longer than `LONGEST_LINE` is divided."""
    rest = b""
    with _open_log(path) as file:
        while block := file.read(CHUNK_BYTES):
            block = rest + block
            end = block.rfind(b"\n") + 1
            if len(block) - end > LONGEST_LINE:
                # Otherwise a file without line ends would be collected in memory as a whole.
                end = len(block)
            rest = block[end:]
            if end:
                yield block[:end]
    if rest:
        yield rest


def clean(raw: bytes) -> str:
    """Return bytes of a log as text without colour codes and control characters."""
    if b"\x1b" in raw:
        raw = _ANSI.sub(b"", raw)
    return _CONTROL.sub(b"", raw).decode("utf-8", "replace")


def parts_of(line: bytes, triggers: "re.Pattern[bytes]") -> Iterator[bytes]:
    """Yield a line in parts of bounded length, split at carriage returns.

    Of an overlong line only the parts around matches of `triggers` are yielded.
    """
    if len(line) <= LONGEST_LINE:
        # A progress bar rewrites its line: what stands behind the last carriage return may be an error.
        yield from line.split(b"\r") if b"\r" in line else (line,)
        return
    end = -1
    for number, match in enumerate(triggers.finditer(line)):
        if number >= _PARTS_AT_MOST:
            return
        if match.start() > end:
            end = match.start() + _AFTER
            yield from line[max(0, match.start() - BEFORE) : end].split(b"\r")


def excerpt_of(chunk: bytes, start: int, before: int, after: int) -> str:
    """Return the lines around offset `start` of a chunk as clean text: `before` and `after` bytes of them."""
    begin = max(0, start - before)
    begin = chunk.rfind(b"\n", max(0, begin - before), begin) + 1 or begin
    end = min(len(chunk), start + after)
    line_end = chunk.find(b"\n", end, end + before)
    return _clean_lines(chunk[begin : line_end if line_end >= 0 else end])


def _clean_lines(raw: bytes) -> str:
    """Return lines of a log as text, without colours and other control sequences.

    Each state of a line that a progress bar has rewritten becomes a line of its own.
    """
    return "\n".join(clean(line) for line in raw.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))


def line_before(at: Position) -> str:
    """Return the line before a position as clean text; empty if the position is at the beginning of a chunk."""
    end = max(0, at.start - 1)
    begin = at.chunk.rfind(b"\n", max(0, end - _LONGEST_BEFORE), end) + 1
    return clean(at.chunk[begin:end])


def lines_after(at: Position, count: int) -> Iterator[str]:
    """Yield up to `count` lines after the line at a position, as clean text; none at the end of a chunk."""
    end = at.chunk.find(b"\n", at.start)
    for _ in range(count):
        if end < 0:
            return
        begin, end = end + 1, at.chunk.find(b"\n", end + 1)
        yield clean(at.chunk[begin : min(begin + _LONGEST_BEFORE, end if end >= 0 else len(at.chunk))])
