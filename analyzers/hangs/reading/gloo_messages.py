"""Add sends and receives of gloo, which Flight Recorder leaves out; the project's recorders count them in `p2p_R.bin`.

Each row of that file has the number of calls, the time and tag of the last call, and the names of the message and its
group. A rank whose stack is in a send or recv waits for its peer if the peer has issued fewer of the matching calls.
If both have issued equally many and both wait, the last send and recv do not match because their tags differ.
"""

import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from analyzers.files import open_regular
from analyzers.hangs.model import Frame, Job, Op, RankState, Signature
from analyzers.hangs.reading.p2p import NAME, other_half_name
from analyzers.hangs.reading.side_files import SideFiles

ROW = struct.Struct("<qq40sq64s")
FILE_BYTES = 1 << 20
CALLS = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "_wait_batch_p2p"}
LIBRARY = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
INNERMOST_FRAMES = 6
"""A send or recv is only looked for among these innermost frames; farther out it has called something else."""


class MessageName(NamedTuple):
    """The name of a process group, and of a message in it: `send 0->1` or `recv 1<-0`, with ranks within the group."""

    group: str
    name: str


class MessageCount(NamedTuple):
    """How often a rank issued one send or recv, and the time and the tag of the last one.

    Older files, without tags, have 0 as the tag.
    """

    calls: int
    time_ns: int
    tag: int


MessageCounts = Mapping[MessageName, MessageCount]
AllCounts = Mapping[int, MessageCounts]
"""How often each rank issued each message."""


def read_message_counts(path: Path) -> MessageCounts:
    """Return how often a rank issued each message, from its `p2p_R.bin`; empty if it cannot be read."""
    return {
        MessageName(decoded(group), decoded(name)): MessageCount(calls, time_ns, tag)
        for calls, time_ns, name, tag, group in read_rows(path)
        if name.startswith((b"send ", b"recv "))
    }


def read_rows(path: Path) -> list[tuple[int, int, bytes, int, bytes]]:
    """Return the used rows of a `p2p_R.bin`: count, time, name, tag and group; empty if it cannot be read."""
    try:
        with open_regular(path) as file:
            content = file.read(FILE_BYTES)
    except OSError:
        return []
    # A rank that was killed while it wrote leaves a partial row.
    content += b"\0" * (-len(content) % ROW.size)
    return [row for row in ROW.iter_unpack(content) if row[0] > 0]


def decoded(raw: bytes) -> str:
    """Return a zero-padded field of bytes as text."""
    return raw.rstrip(b"\0").decode("utf-8", "replace")


def in_message(frames: list[Frame]) -> bool:
    """Return whether a stack is in a send or receive of `torch.distributed`."""
    return any(f.name in CALLS and LIBRARY.search(f.filename) for f in frames[:INNERMOST_FRAMES])


def add_messages(job: Job, side: SideFiles) -> None:
    """Add sends and receives that Flight Recorder left out to the pending operations of ranks whose stack is in one.

    A send or recv is added only if the peer has not issued its counterpart. It comes before all recorded operations.
    """
    known = {rank: read_message_counts(path) for rank, path in side.message_files.items()}
    stacks = {rank: side.main_stack(rank) for rank in job.ranks if known.get(rank)}
    waiting = {rank: known[rank] for rank, stack in stacks.items() if in_message(stack)}
    for rank, state in job.ranks.items():
        if rank in waiting:
            stack = stacks[rank]
            unmet = find_unmet(job, rank, known) or find_other_tag(job, rank, waiting)
            launch = max((issued.calls for issued in unmet.values()), default=0)
            job.stacks.append(stack)
            # In front of the others: a rank that waits in a message has not come to a later collective.
            state.pending[:0] = [op for m, issued in unmet.items() if (op := operation(job, state, m, issued, launch))]


def find_unmet(job: Job, rank: int, known: AllCounts) -> MessageCounts:
    """Return the messages of `rank` for which its peer has issued the counterpart fewer times, with their counts.

    `known` has the counts of all ranks.
    """
    return {message: issued for message, issued in known[rank].items() if is_unmet(job, rank, message, issued, known)}


def is_unmet(job: Job, rank: int, message: MessageName, issued: MessageCount, known: AllCounts) -> bool:
    """Return whether the peer issued the counterpart of a message fewer times than the rank issued the message."""
    half = find_half(job, rank, message)
    if half is None:
        return False
    other = known.get(half.peer, {}).get(half.message)
    if message.name.startswith("send") and has_received_all(job, half.peer, message.group, known):
        return False
    return other is None or other.calls < issued.calls


def has_received_all(job: Job, rank: int, group: str, known: AllCounts) -> bool:
    """Return whether a rank has received all messages of a group that others sent to it, some from any source.

    The last receive from any source may still wait, so that one more receive than messages is needed.
    """
    number = group_number(job, rank, group)
    if number is None:
        return False
    own = job.groups[number].ranks.index(rank)
    from_any = known.get(rank, {}).get(MessageName(group, f"recv {own}<-any"))
    received = sum(m.calls for name, m in known.get(rank, {}).items() if is_half(name, group, f"recv {own}<-"))
    sent = sum(m.calls for counts in known.values() for name, m in counts.items() if is_half(name, group, "send ", own))
    return from_any is not None and received > sent


def is_half(message: MessageName, group: str, start: str, to: int | None = None) -> bool:
    """Return whether a message of `group` has a name that begins with `start`, and goes to rank `to` of the group."""
    ends = to is None or message.name.endswith(f"->{to}")
    return message.group == group and message.name.startswith(start) and ends


class OtherHalf(NamedTuple):
    """The counterpart of a message: the global rank of the peer, and the name of the recv (or send) there."""

    peer: int
    message: MessageName


def find_half(job: Job, rank: int, message: MessageName) -> OtherHalf | None:
    """Return the counterpart of a rank's message; None if the process group or the peer is not known."""
    match, number = NAME.fullmatch(message.name), group_number(job, rank, message.group)
    if not match or number is None or int(match["peer"]) >= len(job.groups[number].ranks):
        return None
    return OtherHalf(job.groups[number].ranks[int(match["peer"])], MessageName(message.group, other_half_name(match)))


def find_other_tag(job: Job, rank: int, waiting: AllCounts) -> MessageCounts:
    """Return the last message of a rank, if its peer waits for it under a different tag; else an empty dict."""
    message, issued = max(waiting[rank].items(), key=lambda item: item[1].time_ns)
    half = find_half(job, rank, message)
    theirs = waiting.get(half.peer) if half else None
    if half is None or not theirs or max(theirs, key=lambda m: theirs[m].time_ns) != half.message:
        return {}
    other = theirs[half.message]
    return {message: issued} if other.calls == issued.calls and other.tag != issued.tag else {}


def operation(job: Job, state: RankState, message: MessageName, issued: MessageCount, launch: int) -> Op | None:
    """Return an unrecorded message of gloo as a pending operation, as NCCL's recorder would have recorded it.

    `launch` is its p2p sequence number, shared by all messages of the rank that lack a counterpart. The result is None
    if the group is not known.
    """
    number = group_number(job, state.rank, message.group)
    if number is None:
        return None
    job.signatures.append(Signature("gloo", message.name, (), (), (), (), issued.tag))
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
    """Return the index in `Job.groups` of the group `name` that `rank` is a member of; None without one."""
    return next((i for i, g in enumerate(job.groups) if g.name == name and rank in g.ranks), None)
