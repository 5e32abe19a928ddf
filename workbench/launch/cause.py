"""What made a job fail: the earliest error of any rank in any attempt, and how each rank ended.

The agent's own summary shows the last attempt, in which ranks often die of the first one's consequences.
"""

import re
from pathlib import Path
from typing import Any

import msgspec

PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')


def first_error(logs: Path, since: float) -> dict[str, Any] | None:
    """{rank, error, message, file, log} of the earliest `error.json` since `since` (Unix seconds), or None."""
    found = [read for path in logs.glob("*/attempt_*/*/error.json") if (read := read_error(path, since))]
    if not found:
        return None
    return min(found, key=lambda pair: pair[0])[1]


def read_error(path: Path, since: float) -> tuple[tuple[int, float], dict[str, Any]] | None:
    """(time to order by, cause) out of one file. Its timestamp has whole seconds, so the file's time breaks ties."""
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
    cause = {
        "rank": int(path.parent.name),
        "error": message.partition(":")[0],
        "message": message.partition(":")[2].strip() or message,
        "file": innermost(str(extra.get("py_callstack", ""))),
        "log": str(path.with_name("stderr.log")),
    }
    return (int(extra.get("timestamp") or changed), changed), cause


def innermost(callstack: str) -> str:
    """`file:line function` of the last frame of a traceback."""
    places = PLACE.findall(callstack)
    return "{}:{} {}".format(*places[-1]) if places else ""
