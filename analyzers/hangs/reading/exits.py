"""How ranks ended: by an error of their own, by a signal, or because of another rank."""

import re
from dataclasses import dataclass
from enum import StrEnum

from analyzers.hangs.reading.side_formats import ExitFile

ORDERLY_SIGNALS = (-15, -2)
"""Exit codes of SIGTERM and SIGINT, by which a launcher ends the ranks that are left."""
COMMUNICATION = re.compile(
    r"\bgloo\b|\bnccl|c10d|rendezvous|monitoredbarrier|processgroup|\bDist\w*Error|\w*store\b.*(?:get|wait)",
    re.IGNORECASE,
)
"""Words of PyTorch's own errors on a rank whose peer died or does not arrive."""
CONNECTION = re.compile(r"connection (?:closed|reset|refused)|timed? ?out|socket|broken pipe", re.IGNORECASE)
"""Words that mean the same, unless the user's own code raised the error: data are read over connections too."""


class Ending(StrEnum):
    """What is known of the end of a rank."""

    EXCEPTION = "exception"
    EXIT_CODE = "exit_code"
    NO_ERROR = "no_error"
    PROCESS_EXITED = "process_exited"
    """The process no longer existed when its dump was requested; nothing says how it ended."""
    CONNECTION_REFUSED = "connection_refused"


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank. `is_victim`: it ended because of another rank. `exit_code` is negative for a signal."""

    rank: int
    ending: Ending
    is_victim: bool = False
    exit_code: int = 0
    time_ns: int = 0
    exit_file: ExitFile | None = None


def is_victim(end: ExitFile) -> bool:
    """Return whether a rank ended because another one did, or kept it waiting too long."""
    if end.out_of_memory:
        return False
    # Only the exception's own words tell the two apart: PyTorch raises a plain RuntimeError for a lost connection.
    text = f"{end.error} {end.message}"
    innermost = end.traceback[0].filename if end.traceback else "/torch/"
    return bool(COMMUNICATION.search(text) or ("/torch/" in innermost and CONNECTION.search(text)))
