"""Find out how ranks ended: by an error of their own, by a signal, or because of another rank."""

import re
from dataclasses import dataclass, field
from enum import StrEnum

from analyzers.hangs.model import Frame
from analyzers.hangs.reading.side_formats import ExitFile
from analyzers.log_signs.relayed_errors import failed_ranks

ORDERLY_SIGNALS = (-15, -2)
"""The exit codes after SIGTERM and SIGINT, the signals with which a launcher ends the remaining ranks."""
_ABORTED, BACKWARD = "Aborted", "_engine_run_backward"
_INNERMOST_FRAMES = 4
COMMUNICATION = re.compile(
    r"\bgloo\b|\bnccl|c10d|rendezvous|monitoredbarrier|processgroup|\bDist\w*Error|store\b.{0,200}(?:get|wait)",
    re.IGNORECASE,
)
"""Matches PyTorch's own error on a rank whose peer died or does not arrive."""
_SENT_TO_ITSELF = re.compile(r"Pair is not connected \(.{1,80}<--> \[none\]\)")
"""Matches gloo's error in a rank that names itself as its peer; a rank has no connection to itself."""
CONNECTION = re.compile(r"connection (?:closed|reset|refused)|timed? ?out|socket|broken pipe", re.IGNORECASE)
"""Matches errors about lost connections and timeouts.

Such an error means that another rank ended only if PyTorch raised it. User code may also read data over connections.
"""


class Ending(StrEnum):
    """The way in which a rank ended, as far as it is known."""

    EXCEPTION = "exception"
    EXIT_CODE = "exit_code"
    NO_ERROR = "no_error"
    PROCESS_EXITED = "process_exited"
    """The process no longer existed when its dump was requested; nothing says how it ended."""
    CONNECTION_REFUSED = "connection_refused"


@dataclass(frozen=True)
class RankEnd:
    """The end of a rank; `is_victim` says that it ended because of another rank. `exit_code` is -N for signal N.

    `signal` is Python's name of the fatal signal (`Aborted`), and `stack` the main thread's stack at that moment.
    `sizes` is (bytes received, bytes expected) if gloo aborted the rank because the two differ. `time_ns` is 0 if
    unknown.
    """

    rank: int
    ending: Ending
    is_victim: bool = False
    exit_code: int = 0
    time_ns: int = 0
    exit_file: ExitFile | None = None
    signal: str = ""
    stack: list[Frame] = field(default_factory=list)
    sizes: tuple[int, int] | None = None

    @property
    def is_size_abort(self) -> bool:
        """Whether gloo aborted the rank in a collective, which happens if members pass tensors of different sizes."""
        return self.sizes is not None or (self.signal == _ABORTED and _in_collective(self.stack))


def _in_collective(stack: list[Frame]) -> bool:
    """Return whether the innermost frames of a stack are in `torch.distributed` or in a backward pass.

    A backward pass counts because DDP issues its collectives there.
    """
    innermost = stack[:_INNERMOST_FRAMES]
    return any("/torch/distributed/" in f.filename or f.name == BACKWARD for f in innermost)


def is_victim(end: ExitFile) -> bool:
    """Return whether the error of a rank was caused by another rank, which had ended or did not arrive in time."""
    if end.out_of_memory or _SENT_TO_ITSELF.search(end.message):
        return False
    if failed := failed_ranks(end.message):
        return end.rank not in failed
    # Only the exception's own words tell the two apart: PyTorch raises a plain RuntimeError for a lost connection.
    text = f"{end.error} {end.message}"
    # Without a traceback the words alone decide, as if the exception came from PyTorch.
    innermost = end.traceback[0].filename if end.traceback else "/torch/"
    return bool(COMMUNICATION.search(text) or ("/torch/" in innermost and CONNECTION.search(text)))
