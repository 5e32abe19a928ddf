"""Define the structs of the JSON document `workbench.logs/1`."""

import msgspec

from analyzers.case.facts import LogEvent, RankLog
from analyzers.device_memory import MemoryPart, NcclProcess


class UnreadLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a log that looks like an error and that no rule understands: its number and its (shortened) text."""

    line: int
    text: str


class LogFile(msgspec.Struct, frozen=True, kw_only=True):
    """A log file of the run, and how much of it was read.

    `bytes` is its size, and `lines` is the number of lines that were read. `binary` is true if it is not text.
    `problem` is why it could not be read (empty: it could). `skipped_bytes` is the size of the part in the middle that
    was not read, because the part before it has too many lines that look like errors.
    """

    path: str
    bytes: int
    lines: int
    binary: bool = False
    problem: str = ""
    skipped_bytes: int = 0
    """The size of the part in the middle that was not read, as too many lines before it look like errors."""
    unread: list[UnreadLine] = []
    """The first lines that look like errors and that no rule understands; lines that differ in digits count once."""
    unread_count: int = 0


class LogMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a device's memory when a request for memory failed, as the message in a log shows them.

    `requested_bytes` is the size of the failed request. `parts` add up to the total of the device, except for rounding.
    `path` and `line` are the position of the message in the logs.
    """

    rank: int | None
    device: int | None
    path: str
    line: int
    requested_bytes: int
    parts: list[MemoryPart]


class LogsData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of the JSON document `workbench.logs/1`: what the text logs of a run report.

    `world_size` is the number of ranks (None: no log shows it). `ranks` has the last step and line of each rank.
    `events` are in the order of the logs; `left_out` further ones were counted but not kept, because there were too
    many. `files` are the log files. `memory` has the parts of a device's memory at each failed request. `nccl` has the
    memory of NCCL's buffers in each process, if the job was logged with NCCL_DEBUG=INFO.
    """

    world_size: int | None
    ranks: list[RankLog]
    events: list[LogEvent]
    files: list[LogFile]
    left_out: int = 0
    """The number of events that were counted but not kept, because there were too many."""
    memory: list[LogMemory] = []
    """The parts of a device's memory at each failed request for memory, where the message has the sizes."""
    nccl: list[NcclProcess] = []
    """The memory of NCCL's buffers in each process, where a log has its lines (NCCL_DEBUG=INFO)."""
