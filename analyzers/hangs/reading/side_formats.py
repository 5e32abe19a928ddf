"""The files beside the dumps, as the run folder's page describes them."""

from pathlib import Path
from typing import TypeVar

import msgspec

from analyzers.hangs.model import Frame

SIDE_BYTES = 64 << 20

Struct = TypeVar("Struct", bound=msgspec.Struct)


class GroupEntry(msgspec.Struct):
    desc: str = ""
    ranks: list[int] = []


class GroupsFile(msgspec.Struct):
    rank: int
    world_size: int = 0
    local_rank: int | None = None
    host: str = ""
    pid: int = 0
    error_file: str | None = None
    groups: dict[str, GroupEntry] = {}


class Heartbeat(msgspec.Struct):
    step: int
    phase: str = ""
    time_ns: int = 0


class Asked(msgspec.Struct):
    """What came back from one rank."""

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
    round: int = 1
    asked_ns: int = 0
    ranks: dict[int, Asked] = {}


class Collection(msgspec.Struct):
    reason: str = ""
    detail: str | None = None
    asked_ns: int = 0
    stalled_s: float | None = None
    timeout_s: float | None = None
    rounds: list[Round] = []


class ExitFile(msgspec.Struct):
    rank: int
    pid: int = 0
    step: int | None = None
    phase: str | None = None
    error: str = ""
    message: str = ""
    out_of_memory: bool = False
    traceback: list[Frame] = []
    time_ns: int = 0


def read_side(path: Path, struct: type[Struct]) -> Struct | None:
    """A side file, or None when it is damaged: it only helps."""
    try:
        if path.stat().st_size > SIDE_BYTES:
            return None
        return msgspec.convert(msgspec.json.decode(path.read_bytes()), struct, strict=False)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
