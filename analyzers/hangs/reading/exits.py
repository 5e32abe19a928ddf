"""How ranks ended: by an error of their own, by a signal, or because of another rank."""

import re
from dataclasses import dataclass

from analyzers.hangs.model import user_frame
from analyzers.hangs.reading.side_formats import ExitFile
from analyzers.words import source_line

ORDERLY = (-15, -2)
"""How a launcher ends the ranks that are left over."""
COMMUNICATION = re.compile(
    r"\bgloo\b|\bnccl|c10d|rendezvous|monitoredbarrier|processgroup|\bDist\w*Error|\w*store\b.*(?:get|wait)",
    re.IGNORECASE,
)
"""What a rank's error speaks of when another rank is gone or does not come."""
CONNECTION = re.compile(r"connection (?:closed|reset|refused)|timed? ?out|socket|broken pipe", re.IGNORECASE)
"""The same, unless the user's own code raised it: data are read over connections too."""


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
    where = f" at {line.name} ({source_line(line.filename, line.line)})" if line else ""
    return ("out of memory" if gone.out_of_memory else f"{gone.error}: {gone.message}"[:200]) + where
