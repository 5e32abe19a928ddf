"""Read the lines of a log of any size as clean text, without colours, control characters and overlong parts."""

import codecs
import gzip
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from io import BufferedReader
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
    """Return a log opened for reading UTF-8: decompressed if it is gzipped, converted if it is in UTF-16."""
    file = open_regular(path)
    magic = file.read(2)
    file.seek(0)
    if magic in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return codecs.EncodedFile(file, "utf-8", "utf-16", "replace")
    # GzipFile inflates as it is read: a bomb costs time, which the child's limit ends, not memory.
    return gzip.GzipFile(fileobj=file) if magic == b"\x1f\x8b" else file  # type: ignore[return-value]


def chunks(path: Path) -> Iterator[bytes]:
    """Yield a log in chunks of UTF-8 that end where a line ends; only a line longer than `LONGEST_LINE` is divided.

    Windows PowerShell writes what it redirects in UTF-16.
    """
    rest = b""
    with _open_log(path) as file:
        while block := file.read(CHUNK_BYTES):
            if not block.strip(b"\0"):
                _skip_hole(file)
                continue
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


def _skip_hole(file: IO[bytes]) -> None:
    """Go to the next bytes that are on the disk: a log that is cut while it is written begins with a hole."""
    if isinstance(file, BufferedReader):
        try:
            file.seek(os.lseek(file.fileno(), file.tell(), os.SEEK_DATA))
        except OSError:  # nothing follows
            file.seek(0, os.SEEK_END)


def clean(raw: bytes) -> str:
    """Return bytes of a log as text without colour codes and control characters."""
    if b"\x1b" in raw:
        raw = _ANSI.sub(b"", raw)
    return _CONTROL.sub(b"", raw).decode("utf-8", "replace")


_ESCAPED_LINES, _ESCAPED = 200, b'\\n  File "'


def parts_of(line: bytes, triggers: "re.Pattern[bytes]") -> Iterator[bytes]:
    """Yield a line in parts of bounded length, split at carriage returns.

    Of an overlong line only the parts around matches of `triggers` are yielded.
    """
    if _ESCAPED in line:
        # Somebody has printed the text of an exception as Python writes it in quotes.
        for part in line.replace(b"\\n", b"\n").replace(b"\\'", b"'").split(b"\n")[:_ESCAPED_LINES]:
            yield part[:LONGEST_LINE].rstrip(b"\r")
        return
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


# Split off the prefix that launchers and loggers put before a line: the rank, the time, the host.
#
# [default2]:[rank2]: ValueError: no tokens              torchrun with --tee, then PyTorch [rank1]:[E1218
# 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 1] Watchdog caught ... 3: Traceback (most recent call last):
# srun --label Jul 13 21:22:34 gpu-17 kernel: NVRM: Xid ...           the kernel's log

_GLOBAL_RANK = re.compile(r"\[rank(\d{1,6})\]")
LOCAL_RANK = re.compile(r"^\[(?!rank)[A-Za-z_.-]{1,32}(\d{1,4})\]:")
_PREFIX = re.compile(
    r"(?:\[\d{1,4}\]\s(?=\[rank\d))?(?:\[[A-Za-z_.-]{1,32}\d{1,6}(?:\|\d{1,6})?\]:\s?)+"
    r"|\((?:[\w=]{1,60} ){0,3}pid=\d+(?:, ip=[\d.]+)?\)\s"
)
"""Matches the prefix that launchers and PyTorch put before each line of a process, even in a traceback."""
_OWN_WORDS = re.compile(r"(?:^|[\s\[(])(?<!LoRA )(?<!lora )(?<!Lora )[Rr]ank[ =:]{0,2}(\d{1,6})\b(?!/| version| has)")
"""Matches a rank in a line that the job's own code prints: `[rank 3] step 1`, `rank=3`."""
SRUN_LABEL = re.compile(r"^ {0,4}(\d{1,5}): ")
_GLOG_TIME = re.compile(r"\[[IWEF](\d{1,2})(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9}) ")
_ELASTIC_TIME = re.compile(r"^(?:\S+\]:)?[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6}) ")
_ISO_TIME = re.compile(r"\b(20\d\d)-(\d\d)-(\d\d)[ T_](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
STEP = re.compile(
    r"(?:^|[\s\[{(|,'\"])(?:global_?|train_?)?(?:[Ss]tep|[Ii]ter(?:ation)?)(?:/max_steps)?['\"]?[\s:=#/]{1,12}['\"]?(\d{1,12})\b(?!\.\d)"
)
"""Matches a step number: `step 12`, `iter 100:`, `iteration 859/ 200000`, `'step': 12`."""


_NO_STEP = re.compile(r"\b(?:until|every|per|each|max|from|before)\s$")
"""Matches what stands before a step that a program only speaks of, as in `saves blocked until step 100`."""


@dataclass(frozen=True)
class Prefix:
    """The prefix of a line, and the ranks in it.

    `key` is the text of the prefix. It is the same for all lines of one process, so it distinguishes the lines of
    several processes in one log. `rank` is the global rank, `local_rank` the rank within the node; each is None if the
    prefix does not have it.
    """

    key: str
    rank: int | None
    local_rank: int | None


NO_PREFIX = Prefix("", None, None)


def split_prefix(text: str, labelled: bool) -> tuple[Prefix, str]:
    """Return (prefix of a line, the line without its prefix).

    `labelled` says whether srun put a label before each line of the log.
    """
    label = SRUN_LABEL.match(text) if labelled else None
    body = text[label.end() :] if label else text
    match = _PREFIX.match(body)
    if not match and not label:
        return NO_PREFIX, text
    given = (label[0].strip() if label else "") + (match[0].strip() if match else "")
    named, local = _GLOBAL_RANK.search(given), LOCAL_RANK.match(body)
    # The label of srun is only the number of a task, which is the rank if each rank is a task.
    rank = int(named[1]) if named else int(label[1]) if label else None
    return Prefix(given, rank, int(local[1]) if local else None), body[match.end() :] if match else body


def global_rank(text: str) -> int | None:
    """Return the rank in PyTorch's `[rankN]`, at any position in the line; None if the line does not have it."""
    match = _GLOBAL_RANK.search(text)
    return int(match[1]) if match else None


def printed_rank(text: str) -> int | None:
    """Return the rank that the job's own code printed in a line, such as 3 in `[rank 3] step 1`; None without one."""
    match = _OWN_WORDS.search(text)
    return int(match[1]) if match else None


def step_in(text: str) -> int | None:
    match = next((found for found in STEP.finditer(text) if not _NO_STEP.search(text[: found.start() + 1])), None)
    return int(match[1]) if match else None


def time_in(text: str, year: int) -> int | None:
    """Return the time in a line as ns since 1970, taken as UTC; None if the line has no time.

    Loggers of C++ and of torchrun print no year, so `year` is used for them.
    """
    if match := _ISO_TIME.search(text):
        return time_ns(int(match[1]), *map(int, match.groups()[1:6]), fraction=match[7] or "0")
    if match := _GLOG_TIME.search(text) or _ELASTIC_TIME.search(text):
        return time_ns(year, *map(int, match.groups()[:5]), fraction=match[6])
    return None


def time_ns(year: int, month: int, day: int, hour: int, minute: int, second: int, *, fraction: str) -> int | None:
    """Return a date in ns since 1970, taken as UTC; None if there is no such date.

    `fraction` has the digits after the seconds' decimal point.
    """
    try:
        whole = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    # In integers, because a float cannot hold nanoseconds since 1970 exactly.
    return int(whole.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0"))
