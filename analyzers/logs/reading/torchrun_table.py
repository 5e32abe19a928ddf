"""Read the table of failures that torchrun prints: a block for each failed rank of a node, the "root cause" last.

Root Cause (first observed failure):
[0]:
  time      : 2026-11-22_07:17:45
  host      : node01
  rank      : 0 (local_rank: 0)
  exitcode  : -9 (pid: 2970)  (SIGKILL)
"""

import re
from dataclasses import dataclass

from analyzers.logs.model import EventKind, Facts
from analyzers.logs.reading.line_patterns.pattern import Found, number
from analyzers.logs.reading.line_patterns.processes import signal_name

_FIELD = re.compile(r"^\s*(time|host|rank|exitcode|error_file|traceback)\s*: (.{0,400})")
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
