"""Find the collective, send or recv that raised an exception, from the frames and source lines of its traceback."""

import re

import msgspec

from analyzers.logs.model import EventKind, Reason
from analyzers.logs.reading.line_patterns.pattern import Found
from analyzers.logs.reading.tracebacks import Raised, user_frame

MESSAGES = {"send", "recv", "isend", "irecv"}
_TO_ONE_RANK = {"reduce", "gather", "gather_object"}
"""The collectives in which all ranks but the root only send; the source line of the call names the root."""
_INIT = "init_process_group"
NEW_GROUP = "new_group"
_KEY_OF_RANK = re.compile(r"keys: /default_pg/0//(?:\w{1,40}//)?\w{1,20}//\d{1,9}/(\d{1,9})$")
"""Matches the key in the store under which gloo waits for the address of a rank while a process group is created.

The number at its end is the rank within the new group.
"""
MEMBERS = re.compile(r"\bnew_group\( ?(?:ranks ?= ?)?[\[(]([\d, ]{1,200})[\])]")
"""Matches a source line that lists the members of a new process group: `dist.new_group([0, 3])`."""
_PEER = re.compile(
    r"\b(?:src|dst) ?= ?(?:(?P<number>\d{1,5})|[\w.]*rank(?:\(\))? ?(?P<sign>[+-]) ?(?P<offset>\d{1,5}))(?= ?[,)])"
    r"|\bi?(?:send|recv)\([^()]{1,80}, ?(?P<positional>\d{1,5})\)"
)
"""Matches the peer of a send or recv in a source line: `src=0`, `dst=rank + 1`, or the second argument."""
COLLECTIVES_FILE = "torch/distributed/distributed_c10d.py"


def with_operation(found: Found, raised: Raised) -> Found:
    """Return `found`, the event of an exception, with the collective that raised it (`all_reduce`) and the peer rank.

    Both are found in the frames of `raised`. Events other than timeouts, lost connections and mismatches are returned
    unchanged. If the exception was raised in `init_process_group`, or while a process group was created, the missing
    rank is added, too.
    """
    names = (name for file, _, name in raised.frames if file.endswith(COLLECTIVES_FILE) and name)
    operation = next(names, None) if found.facts.operation is None else None
    if operation is None or found.kind not in (EventKind.TIMEOUT, EventKind.CONNECTION_LOST, EventKind.MISMATCH):
        return found
    frame = user_frame(raised.frames)
    code = raised.code.get(frame[:2], "") if frame else ""
    peer = _peer_in(code) if operation in MESSAGES | _TO_ONE_RANK else None
    facts = msgspec.structs.replace(found.facts, operation=operation, peer=peer)
    key = _KEY_OF_RANK.search(raised.message)
    if operation == _INIT and key:
        facts = msgspec.structs.replace(facts, reason=Reason.MISSING_RANKS, ranks=[int(key[1])])
    if operation == NEW_GROUP and key:
        facts = msgspec.structs.replace(facts, reason=Reason.GROUPS, ranks=_member_in(code, int(key[1])))
    return found._replace(facts=facts)


def _member_in(code: str, number: int) -> list[int]:
    """Return, in a list, the member with index `number` of the process group that the source line `code` creates.

    For `new_group([4, 6])` and index 1 the member is 6. The list is empty if the line does not list the members as
    numbers.
    """
    match = MEMBERS.search(code)
    members = sorted(int(digits) for digits in re.findall(r"\d{1,9}", match[1])) if match else []
    return members[number : number + 1]


def _peer_in(code: str) -> str | None:
    """Return the peer rank in a source line: `0` for `src=0`, `+1` for `dst=rank + 1`; None if it has neither."""
    match = _PEER.search(code)
    if not match:
        return None
    return match["number"] or match["positional"] or f"{match['sign']}{match['offset']}"
