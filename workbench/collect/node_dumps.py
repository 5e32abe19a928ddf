"""Exchange information with the collector of a node when dumps are taken, through files in `dumps/` of the run folder.

The collector is the process of the recorders that takes dumps. It writes to `.claimed` why it takes a set of dumps. It
takes a set when a file appears in which one of its ranks requests dumps.
"""

import json
import socket
import time
from pathlib import Path

import msgspec

from analyzers.files import read_json
from analyzers.hangs.reading.side_formats import GroupsFile, read_side
from analyzers.writing import write_whole


class Incident(msgspec.Struct, frozen=True):
    """Why a node took dumps by itself, with a detail as text, and when (Unix ns)."""

    reason: str
    detail: str
    asked_ns: int


class Claim(msgspec.Struct):
    """The content of `.claimed` in the folder of a set of dumps; `elsewhere` says that another node began it."""

    reason: str
    detail: str
    asked_ns: int
    elsewhere: bool = False


def last_incident(dumps: Path) -> Incident | None:
    """Return why and when this node's collector last began to take dumps by itself; None if it never did.

    Dumps that were taken because of another node do not count.
    """
    claims = [claim for path in (dumps, *dumps.glob("set_*")) if (claim := _read_claim(path / ".claimed"))]
    own = (claim for claim in claims if not claim.elsewhere)
    last = max(own, key=lambda claim: claim.asked_ns, default=None)
    return Incident(last.reason, last.detail, last.asked_ns) if last else None


def _read_claim(path: Path) -> Claim | None:
    """Return the content of a file `.claimed`; None if it is not written yet."""
    try:
        return msgspec.convert(read_json(path), Claim)
    except (OSError, ValueError, msgspec.ValidationError):
        return None


def request_dumps(dumps: Path, incident: Incident) -> bool:
    """Request dumps from the collector of this node; return whether there is a rank in whose name this is possible."""
    files = (side for path in dumps.glob("groups_*.json") if (side := read_side(path, GroupsFile)))
    rank = min((side.rank for side in files if side.host == socket.gethostname()), default=None)
    if rank is None:
        return False
    request = {
        "reason": incident.reason,
        "detail": incident.detail,
        "time_ns": time.time_ns(),
        "elsewhere": True,
    }
    write_whole(dumps / f".ask_{rank}.json", json.dumps(request))
    return True
