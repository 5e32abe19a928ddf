"""What made a job fail: the earliest error of any rank in any attempt, and how each rank ended.

The agent's own summary shows the last attempt, in which ranks often die of the first one's consequences.
"""

import re
import socket
from pathlib import Path
from typing import Any

import msgspec

PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def first_error(logs: Path, since: float, first_rank: int = 0) -> dict[str, Any] | None:
    """{rank, node, error, message, file, log, time_ns} of the earliest `error.json` below `logs`, or None.

    `since` is in Unix seconds; the folders of a node's workers count from its `first_rank`.
    """
    found = [cause for path in logs.glob("**/attempt_*/*/error.json") if (cause := read_error(path, since))]
    cause = earliest(*found)
    return cause and cause | {"rank": cause["rank"] + first_rank}


def earliest(*causes: dict[str, Any] | None) -> dict[str, Any] | None:
    """The cause that came first, of those that are known."""
    return min((cause for cause in causes if cause), key=lambda cause: cause.get("time_ns", 0), default=None)


def first_rank_here(dumps: Path, logs: Path) -> int | None:
    """The global rank of local rank 0 of the launch that logs to `logs`, from the ranks' side files."""
    for path in dumps.glob("groups_*.json"):
        try:
            side = msgspec.json.decode(path.read_bytes())
            if logs.name in Path(side["error_file"]).parts:
                return int(side["rank"]) - int(side["local_rank"])
        except (msgspec.DecodeError, KeyError, TypeError, ValueError, OSError):
            continue
    return None


def read_error(path: Path, since: float) -> dict[str, Any] | None:
    """The cause in one file. Its timestamp has whole seconds, so the file's own time tells which came first in one."""
    changed = path.stat().st_mtime
    if changed < since:
        return None
    try:
        body = msgspec.json.decode(path.read_bytes())["message"]
    except (msgspec.DecodeError, KeyError, TypeError):
        return None
    told: dict[str, Any] = {"message": body} if isinstance(body, str) else body
    extra = told.get("extraInfo") or {}
    message = str(told.get("message", ""))
    told_s = int(extra.get("timestamp") or changed)
    return {
        "rank": int(path.parent.name),
        "node": socket.gethostname(),
        "error": message.partition(":")[0],
        "message": message.partition(":")[2].strip() or message,
        "file": innermost(str(extra.get("py_callstack", ""))),
        "log": str(path.with_name("stderr.log")),
        "time_ns": int(min(changed, told_s + 0.999999) * 1e9),
    }


def innermost(callstack: str) -> str:
    """`file:line function` of the last frame of a traceback."""
    places = PLACE.findall(callstack)
    return "{}:{} {}".format(*places[-1]) if places else ""
