"""Sends and receives on gloo, which its recorder leaves out: counted by our own, they become operations to stand in."""

import re
import struct
from pathlib import Path
from typing import NamedTuple

from analyzers.hangs.model import Frame, Job, Op, RankState, Signature
from analyzers.hangs.reading.p2p import NAME, OTHER_HALF
from analyzers.hangs.reading.side_files import Side

ROW = struct.Struct("<qq48s64s")
FILE_BYTES = 1 << 20
CALLS = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "_wait_batch_p2p"}
LIBRARY = re.compile(r"[/\\]torch[/\\]distributed[/\\]")
NEAR = 6
"""Frames from the innermost one in which a call shows; farther out it is somebody else's."""


class Count(NamedTuple):
    """How often a rank issued one kind of message, and when last."""

    calls: int
    time_ns: int


Messages = dict[tuple[str, str], Count]
"""By the name of the group and `send 0->1` or `recv 1<-0`."""


def read_messages(path: Path) -> Messages:
    """The rows of a `p2p_R.bin`; none where it is damaged."""
    try:
        content = path.read_bytes()[:FILE_BYTES]
    except OSError:
        return {}
    content += b"\0" * (-len(content) % ROW.size)
    rows = ROW.iter_unpack(content)
    return {(word(group), word(name)): Count(calls, time_ns) for calls, time_ns, name, group in rows if calls > 0}


def word(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "replace")


def in_message(frames: list[Frame]) -> bool:
    """Whether a stack stands in a send or receive."""
    return any(f.name in CALLS and LIBRARY.search(f.filename) for f in frames[:NEAR])


def add_messages(job: Job, side: Side) -> None:
    """Give each rank that stands in a send or receive without its other half that operation as its front."""
    known = {rank: read_messages(path) for rank, path in side.message_files.items()}
    for rank, state in job.ranks.items():
        if known.get(rank) and in_message(stack := side.main_stack(rank)):
            lacking = [(key, count) for key, count in known[rank].items() if lacks(job, rank, key, count, known)]
            launch = max((count.calls for _, count in lacking), default=0)
            job.stacks.append(stack)
            state.pending[:0] = [op for key, count in lacking if (op := operation(job, state, key, count, launch))]


def lacks(job: Job, rank: int, key: tuple[str, str], count: Count, known: dict[int, Messages]) -> bool:
    """Whether the peer issued fewer of the other half than the rank issued of this one."""
    found, number = NAME.fullmatch(key[1]), group_of(job, rank, key[0])
    if not found or number is None or int(found["peer"]) >= len(job.groups[number].ranks):
        return False
    peer = job.groups[number].ranks[int(found["peer"])]
    half = known.get(peer, {}).get((key[0], OTHER_HALF[found["verb"]].format(**found.groupdict())))
    return half is None or half.calls < count.calls


def operation(job: Job, state: RankState, key: tuple[str, str], count: Count, launch: int) -> Op | None:
    """A message as the recorder would have written it."""
    number = group_of(job, state.rank, key[0])
    if number is None:
        return None
    job.signatures.append(Signature("gloo", key[1], (), (), (), ()))
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
        created_ns=count.time_ns,
        completed_ns=0,
        p2p=True,
    )


def group_of(job: Job, rank: int, name: str) -> int | None:
    return next((i for i, g in enumerate(job.groups) if g.name == name and rank in g.ranks), None)
