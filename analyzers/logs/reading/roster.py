"""Record which ranks occur in a log, with their last step and line: a rank that stopped printing is often to blame."""

import re
from collections import deque
from dataclasses import dataclass, field

from analyzers.case.facts import EventKind, Facts
from analyzers.case.rows import Row, values_in
from analyzers.logs.reading.line_patterns.pattern import Found, number
from analyzers.logs.reading.line_patterns.processes import signal_name
from analyzers.logs.reading.lines import clean, printed_rank, split_prefix, step_in

_HEAD_BYTES, _TAIL_BYTES = 1 << 15, 1 << 16
"""The number of bytes that are read at the start and at the end of each chunk.

They are enough to find the ranks and their last lines.
"""
_LONGEST_TEXT = 1000
_LONGEST_ROW = 400
_SAID_AT_MOST, _LONGEST_SAID = 32, 120
"""The number of last lines of a rank that are kept to compare it with other ranks, and the most characters of each."""
ROWS_AT_MOST = 200
RANKS_AT_MOST = 1 << 16
WORLD_SIZE = re.compile(r"(?:world[_ ]size|nranks|WORLD_SIZE)['\"]?\s*[=: ]\s*(\d{1,6})\b")
UNRANKED = -1
_FINITE_LOSS = re.compile(
    r"(?:loss|grad_norm|grad norm|gnorm|perplexity)['\"]?\s{0,4}[:= ]\s{0,8}['\"]?(?:tensor\()?[-+]?\d", re.IGNORECASE
)
_NOT_FINITE = re.compile(r"(?i)\b(?:nan|inf)\b")
LAYOUT = re.compile(r"^\s{2,}\S|^[=*\s-]*$|^\[[IWEF]\d|^[\u2500-\u257f]")
"""Matches lines of tracebacks, tables, boxes and C++ loggers, which are not the last output of the job itself."""


@dataclass
class Seen:
    """The facts that a log shows about one rank: the last step (`step`) and the last line (`line`) that it printed.

    `step_line` is its last line with a step. `line_number`, `step_number` and `finite_number` are line numbers in the
    file: of the rank's last line, of its last line with a step, and of its last line with a finite loss. `said` has its
    last lines, shortened.
    """

    step: int | None = None
    line: str = ""
    step_line: str = ""
    line_number: int = 0
    step_number: int = 0
    finite_number: int = 0
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_SAID_AT_MOST))


@dataclass
class Roster:
    """The ranks that occur in one log, each with its last step and line.

    Lines without a rank are recorded under the number `UNRANKED`.
    """

    ranks: dict[int, Seen] = field(default_factory=dict)
    first_rows: list[Row] = field(default_factory=list)
    last_rows: deque[Row] = field(default_factory=lambda: deque(maxlen=ROWS_AT_MOST))
    world_size: int | None = None

    def look(self, chunk: bytes, triggers: "re.Pattern[bytes]", labelled: bool, first: int) -> None:
        """Record the ranks and steps that occur in a chunk of the log, and the last line of each rank.

        Of a long chunk only the first `_HEAD_BYTES` and the last `_TAIL_BYTES` are read. `triggers` finds lines that
        may report errors, `labelled` says whether srun labelled the lines, and `first` is the line number of the
        chunk's first line.
        """
        parts = [(first, chunk)]
        if len(chunk) > _HEAD_BYTES + _TAIL_BYTES:
            tail = first + chunk.count(b"\n", 0, len(chunk) - _TAIL_BYTES)
            parts = [(first, chunk[:_HEAD_BYTES]), (tail, chunk[-_TAIL_BYTES:])]
        for begin, part in parts:
            for at, line in enumerate(part.split(b"\n"), begin):
                # Progress bars write many states into one line, each after a carriage return.
                for raw in line.split(b"\r"):
                    if raw.strip():
                        self.note(raw[:_LONGEST_TEXT], labelled, at, is_error=bool(triggers.search(raw)))

    def note(self, raw: bytes, labelled: bool, number: int, *, is_error: bool) -> None:
        """Record the rank, the step and the text of one line of the log (`raw`); `number` is its line number.

        If the line reports an error (`is_error`), a rank named in its text is not taken as the rank that printed it.
        `labelled` says whether srun labelled the lines.
        """
        text = clean(raw)
        prefix, body = split_prefix(text, labelled)
        rank = prefix.rank
        if rank is None and not is_error:
            rank = printed_rank(text)
        if not is_error and (size := WORLD_SIZE.search(text)):
            # Groups of some ranks print a world size, too; that of the job is the largest.
            self.world_size = max(self.world_size or 0, int(size[1]))
        key = UNRANKED if rank is None else rank
        if key not in self.ranks and len(self.ranks) > RANKS_AT_MOST:
            return
        seen = self.ranks.setdefault(key, Seen())
        # A row with NaN is read as an error, too.
        if (not is_error or _NOT_FINITE.search(body)) and not LAYOUT.match(body) and (values := values_in(body)):
            row = Row(number, rank, step_in(body), values, body[:_LONGEST_ROW])
            (self.first_rows if len(self.first_rows) < ROWS_AT_MOST else self.last_rows).append(row)
        if not is_error and not LAYOUT.match(body):
            seen.line, seen.line_number = body[:_LONGEST_TEXT], number
            seen.said.append(body[:_LONGEST_SAID])
            if (step := step_in(body)) is not None:
                seen.step, seen.step_number, seen.step_line = step, number, seen.line
            if _FINITE_LOSS.search(body):
                seen.finite_number = number

    def in_order(self) -> list[tuple[int, Seen]]:
        return sorted(self.ranks.items(), key=lambda item: item[1].line_number)

    def goes_on_after(self, number: int, rank: int | None) -> bool:
        """Return whether `rank` (None: any rank) printed a step after line `number`."""
        return any(seen.step_number > number for key, seen in self.ranks.items() if rank in (None, key))

    def is_finite_after(self, number: int, rank: int | None) -> bool:
        """Return whether `rank` (None: any rank) printed a finite loss after line `number`.

        A line without a rank also counts.
        """
        return any(seen.finite_number > number for key, seen in self.ranks.items() if rank in (None, key, UNRANKED))


# Read the table of failures that torchrun prints: a block for each failed rank of a node, the "root cause" last.
#
# Root Cause (first observed failure):
# [0]:
#   time      : 2026-11-22_07:17:45
#   host      : node01
#   rank      : 0 (local_rank: 0)
#   exitcode  : -9 (pid: 2970)  (SIGKILL)

_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*: (.{0,400})")
_RECEIVED = re.compile(r"[Ss]ignal \d{1,2} \((SIG\w{2,8})\) received by PID (\d{1,12})")
_RULE = re.compile(r"^\s*[=-]{20,}\s*$")
RANK = re.compile(r"(\d{1,9}) \(local_rank: (\d{1,6})\)")
EXIT = re.compile(r"(-?\d{1,6}) \(pid: (\d{1,12})\)")


@dataclass
class TorchrunTable:
    """A reader of torchrun's table of failures, line by line; its fields describe the failed rank that is being read.

    The table has a block of lines for each failed rank. `is_root` says whether the present block is the root cause.
    """

    is_root: bool = False
    host: str | None = None
    time: str = ""
    rank: int | None = None
    local_rank: int | None = None

    def feed(self, body: str) -> Found | None:
        """Read the next line of the log (`body`, without its prefix); return a failed rank's event with its exit code.

        The result is None for all other lines.
        """
        if "Root Cause (first observed failure)" in body:
            self.is_root = True
        elif body.startswith("Failures:"):
            self.is_root = False
        elif _RULE.match(body):
            self.rank = None
        match = _FIELD.match(body)
        if match and match[1] == "traceback" and self.rank is None and (end := _RECEIVED.search(match[2])):
            # A table that was typed or broken into other lines still has this field whole.
            return Found(EventKind.SIGNAL, Facts(signal=end[1], pid=number(end[2])))
        return self.take(match[1], match[2].strip()) if match else None

    def take(self, name: str, value: str) -> Found | None:
        """Parse one field of a failed rank's block; return its event if the field is the exit code, else None.

        Of `exitcode : 1 (pid: 77)`, `name` is `exitcode` and `value` the rest.
        """
        if name == "time":
            # The time is the first field of a block, so that the rank so far is that of the block before.
            self.time, self.rank = value, None
        elif name == "host":
            self.host = value
        elif name == "rank" and (match := RANK.match(value)):
            self.rank, self.local_rank = int(match[1]), int(match[2])
        elif name == "exitcode" and (match := EXIT.match(value)) and self.rank is not None:
            return self.failure(int(match[1]), number(match[2]))
        return None

    def failure(self, code: int, pid: int | None) -> Found:
        """Return the event of the failed rank that is being read, with its exit `code` and process id."""
        facts = Facts(exit_code=code, signal=signal_name(code), pid=pid, local_rank=self.local_rank, host=self.host)
        kind = EventKind.TORCHRUN_ROOT_CAUSE if self.is_root else EventKind.TORCHRUN_FAILURE
        return Found(kind, facts, self.rank)
