"""Sends and receives on gloo, which its recorder leaves out: our recorders count them in `p2p_R.bin`.

Each row of that file is the number of calls, the time of the last one, and the names of the message and its group.
A rank whose stack is in a send or recv, and whose peer has issued fewer of the other half, waits for that peer.
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from analyzers.hangs.model import Frame, Job, Op, RankState, Signature
from analyzers.hangs.reading.p2p import NAME, other_half_name
from analyzers.hangs.reading.side_files import SideFiles

ROW = struct.Struct("<qq48s64s")
FILE_BYTES = 1 << 20
CALLS = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "_wait_batch_p2p"}
LIBRARY = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
INNERMOST_FRAMES = 6
"""Frames among which a send or recv shows; one farther out called something else that does not return."""


class MessageName(NamedTuple):
    """The name of the group, and `send 0->1` or `recv 1<-0` in ranks of that group."""

    group: str
    name: str


class MessageCount(NamedTuple):
    """How often a rank issued one kind of message, and when last."""

    calls: int
    time_ns: int


MessageCounts = Mapping[MessageName, MessageCount]
AllCounts = Mapping[int, MessageCounts]
"""The messages of each rank."""


def read_message_counts(path: Path) -> MessageCounts:
    """Return the rows of a `p2p_R.bin`; none where it cannot be read."""
    try:
        content = path.read_bytes()[:FILE_BYTES]
    except OSError:
        return {}
    # A rank that was killed while it wrote leaves a partial row.
    content += b"\0" * (-len(content) % ROW.size)
    rows = ROW.iter_unpack(content)
    return {
        MessageName(decoded(group), decoded(name)): MessageCount(calls, time_ns)
        for calls, time_ns, name, group in rows
        if calls > 0
    }


def decoded(raw: bytes) -> str:
    """Return a field of fixed width as text."""
    return raw.rstrip(b"\0").decode("utf-8", "replace")


def in_message(frames: list[Frame]) -> bool:
    """Return whether a stack is in a send or receive."""
    return any(f.name in CALLS and LIBRARY.search(f.filename) for f in frames[:INNERMOST_FRAMES])


def add_messages(job: Job, side: SideFiles) -> None:
    """Put the messages without their other half in front of the operations of each rank whose stack is in one."""
    known = {rank: read_message_counts(path) for rank, path in side.message_files.items()}
    for rank, state in job.ranks.items():
        if known.get(rank) and in_message(stack := side.main_stack(rank)):
            unmet = {m: issued for m, issued in known[rank].items() if is_unmet(job, rank, m, issued, known)}
            launch = max((issued.calls for issued in unmet.values()), default=0)
            job.stacks.append(stack)
            # In front of the others: a rank that waits in a message has not come to a later collective.
            state.pending[:0] = [op for m, issued in unmet.items() if (op := operation(job, state, m, issued, launch))]


def is_unmet(job: Job, rank: int, message: MessageName, issued: MessageCount, known: AllCounts) -> bool:
    """Return whether the peer issued the other half fewer times than the rank issued this one."""
    match, number = NAME.fullmatch(message.name), group_number(job, rank, message.group)
    if not match or number is None or int(match["peer"]) >= len(job.groups[number].ranks):
        return False
    peer = job.groups[number].ranks[int(match["peer"])]
    other = known.get(peer, {}).get(MessageName(message.group, other_half_name(match)))
    return other is None or other.calls < issued.calls


def operation(job: Job, state: RankState, message: MessageName, issued: MessageCount, launch: int) -> Op | None:
    """Return a message as NCCL's recorder would have recorded it."""
    number = group_number(job, state.rank, message.group)
    if number is None:
        return None
    job.signatures.append(Signature("gloo", message.name, (), (), (), ()))
    return Op(
        rank=state.rank,
        group=number,
        seq=0,
        p2p_seq=launch,
        signature=len(job.signatures) - 1,
        stack=len(job.stacks) - 1,
        started=False,
        done=False,
        retired=False,
        created_ns=issued.time_ns,
        completed_ns=0,
        p2p=True,
    )


def group_number(job: Job, rank: int, name: str) -> int | None:
    """Return the index in `Job.groups` of a rank's group of that name."""
    return next((i for i, g in enumerate(job.groups) if g.name == name and rank in g.ranks), None)
