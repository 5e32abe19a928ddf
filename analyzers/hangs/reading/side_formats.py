"""Define the formats of the JSON files beside the dumps, as `workbench.recorders` writes them."""

from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from analyzers.files import read_json
from analyzers.hangs.model import Frame

SIDE_BYTES = 64 << 20
"""A larger file beside the dumps is damaged or hostile: groups of thousands of ranks take a few MiB."""

Struct = TypeVar("Struct", bound=msgspec.Struct)


class AnswerStatus(StrEnum):
    """The outcome of the request for a rank's dump."""

    OK = "ok"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    EXITED = "exited"
    UNREGISTERED = "unregistered"


class ProcessState(StrEnum):
    """The reason why a process does not run: it is stopped, or waits in the kernel."""

    STOPPED = "stopped"
    IN_KERNEL = "in the kernel"


class CollectionReason(StrEnum):
    """Why dumps were collected."""

    ASKED = "asked"
    STALLED = "stalled"


# Fields with values of these enums are plain text below: another version of the recorders may write other words, which
# must not make the file unreadable.


class GroupEntry(msgspec.Struct):
    """A process group in `groups_R.json`; `ranks` are global."""

    desc: str = ""
    ranks: list[int] = []


class GroupsFile(msgspec.Struct):
    """The content of `groups_R.json`: the process of a rank, and its process groups by name."""

    rank: int
    world_size: int = 0
    local_rank: int | None = None
    host: str = ""
    pid: int = 0
    error_file: str | None = None
    attempt: int = 0
    groups: dict[str, GroupEntry] = {}


class Heartbeat(msgspec.Struct):
    """The last heartbeat of a rank's main thread: its step (0: none yet) and phase, and when it entered that phase."""

    step: int
    phase: str = ""
    time_ns: int = 0


class Answer(msgspec.Struct):
    """How one rank answered the request for its dump; `status` is an `AnswerStatus`."""

    status: str = ""
    channel: str | None = None
    asked_ns: int | None = None
    answered_ns: int | None = None
    file: str | None = None
    stacks: str | None = None
    exit_code: int | None = None
    process: str | None = None
    heartbeat: Heartbeat | None = None


class Round(msgspec.Struct):
    """One round of collecting dumps: the collector asked every rank once, and the ranks answered or did not."""

    round: int = 1
    asked_ns: int = 0
    ranks: dict[int, Answer] = {}


class Collection(msgspec.Struct):
    """The content of `collection.json`: why and when dumps were requested, and each rank's answer in each round.

    `attempt` is the number of restarts before; None if the recorder did not write it.
    """

    reason: str = ""
    detail: str | None = None
    asked_ns: int = 0
    attempt: int | None = None
    stalled_s: float | None = None
    timeout_s: float | None = None
    rounds: list[Round] = []


class ExitFile(msgspec.Struct):
    """The content of `exit_R.json`: the uncaught exception that ended a rank; `traceback` is innermost first."""

    rank: int
    pid: int = 0
    step: int | None = None
    phase: str | None = None
    error: str = ""
    message: str = ""
    out_of_memory: bool = False
    traceback: list[Frame] = []
    time_ns: int = 0


class ThreadError(ExitFile):
    """The content of `thread_R.json`: the uncaught exception that ended a thread of a rank whose process went on."""

    thread: str = ""


def read_side(path: Path, struct: type[Struct]) -> Struct | None:
    """Return the content of a file beside the dumps; None if it is damaged, as a verdict can do without it."""
    try:
        return msgspec.convert(read_json(path), struct, strict=False)
    except (OSError, ValueError, msgspec.ValidationError):
        return None
