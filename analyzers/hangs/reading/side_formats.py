"""Define the formats of the JSON files beside the dumps, which `workbench.recorders` writes."""

from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import msgspec

from analyzers.files import read_json
from analyzers.hangs.model import Frame
from analyzers.log_signs import split_hint

_SIDE_BYTES = 64 << 20
"""The size in bytes above which a file beside the dumps is damaged or hostile; thousands of ranks take a few MiB."""

Struct = TypeVar("Struct", bound=msgspec.Struct)


class AnswerStatus(StrEnum):
    """The outcome of a request for a rank's dump.

    `REFUSED`: the rank's server gave no dump although the process existed. `EXITED`: the process no longer existed.
    `UNREGISTERED`: the rank had not yet written the file with the address for requests.
    """

    OK = "ok"
    TIMEOUT = "timeout"
    REFUSED = "refused"
    EXITED = "exited"
    UNREGISTERED = "unregistered"


class ProcessState(StrEnum):
    """The reason why a process does not run: a signal has stopped it, or it waits in the kernel."""

    STOPPED = "stopped"
    IN_KERNEL = "in the kernel"


class CollectionReason(StrEnum):
    """The reasons for collecting dumps that a verdict depends on; the collector also writes others.

    `ASKED`: a person or a program asked for the dumps. `STALLED`: the ranks made no progress.
    """

    ASKED = "asked"
    STALLED = "stalled"


# Fields with values of these enums are plain text below: another version of the recorders may write other words, which
# must not make the file unreadable.


class GroupEntry(msgspec.Struct):
    """A process group in `groups_R.json`, which rank R wrote; `ranks` are the global ranks of its members."""

    desc: str = ""
    ranks: list[int] = []


class GroupsFile(msgspec.Struct):
    """The content of `groups_R.json`: facts about the process of rank R, and its process groups by name.

    `local_rank` is the rank within the node, `attempt` the number of restarts of the job before this process, and
    `error_file` the path where torchrun wants the error of this process.
    """

    rank: int
    world_size: int = 0
    local_rank: int | None = None
    host: str = ""
    pid: int = 0
    error_file: str | None = None
    attempt: int = 0
    groups: dict[str, GroupEntry] = {}


class Heartbeat(msgspec.Struct):
    """The last heartbeat of a rank's main thread: its step (0: none yet) and phase, and when it entered that phase.

    A phase is a part of a step, such as forward or backward.
    """

    step: int
    phase: str = ""
    time_ns: int = 0


class Answer(msgspec.Struct):
    """The outcome of one request for a rank's dump; `status` is an `AnswerStatus`.

    `asked_ns` and `answered_ns` are in nanoseconds since the epoch. `stacks` is the way in which the rank's stack was
    obtained, and `process` is a `ProcessState`. `exit_code` is known only for a process that had ended.
    """

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
    """One round of collecting dumps, in which every rank was asked once; `ranks` has the outcome for each rank."""

    round: int = 1
    asked_ns: int = 0
    ranks: dict[int, Answer] = {}


class Collection(msgspec.Struct):
    """The content of `collection.json`: why and when dumps were requested, and each rank's answer in each round.

    `reason` is `stalled`, `asked`, `failed` or `died`. `attempt` is how many times the job had been restarted; None if
    the recorder did not write it. `stalled_s` is the number of seconds without progress of the job, `timeout_s` the
    timeout of collectives in seconds. `blocks` has the source code around the lines at which ranks are: {source file:
    {line: (line, header) of each `if`, loop or handler around it, innermost first}}.
    """

    reason: str = ""
    detail: str | None = None
    asked_ns: int = 0
    attempt: int | None = None
    stalled_s: float | None = None
    timeout_s: float | None = None
    rounds: list[Round] = []
    blocks: dict[str, dict[str, list[tuple[int, str]]]] = {}


class ExitFile(msgspec.Struct):
    """The content of `exit_R.json`: the uncaught exception that ended rank R.

    `error` is the type of the exception, and `message` its text. If the text ends with advice, as errors of this
    project do, the advice is in `hint` and not in `message`. `traceback` has the innermost frame first.
    """

    rank: int
    pid: int = 0
    step: int | None = None
    phase: str | None = None
    error: str = ""
    message: str = ""
    out_of_memory: bool = False
    traceback: list[Frame] = []
    time_ns: int = 0
    hint: str = ""

    def __post_init__(self) -> None:
        if not self.hint:
            self.message, self.hint = split_hint(self.message)


class ThreadError(ExitFile):
    """The content of `thread_R.json`: an uncaught exception that ended a thread of rank R while its process went on."""

    thread: str = ""


def read_side(path: Path, struct: type[Struct]) -> Struct | None:
    """Return the content of a file beside the dumps as a `struct`; None if it cannot be read or has another format.

    Errors are ignored because a verdict is possible without the file.
    """
    try:
        # Not strict: ranks are keys of dicts, and JSON writes keys as texts.
        return msgspec.convert(read_json(path), struct, strict=False)
    except (OSError, ValueError, msgspec.ValidationError):
        return None
