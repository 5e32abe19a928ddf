"""Match each send with the recv on its peer, and each recv with the send.

The name of an operation has the ranks within the process group: rank 0 issues `send 0->1`, rank 1 issues `recv 1<-0`.
"""

import re
import struct
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from analyzers.files import open_regular
from analyzers.hangs.model import Frame, Job, Op, RankState, Signature
from analyzers.hangs.reading.side_files import SideFiles

NAME = re.compile(r"(?P<verb>send|recv) (?P<me>\d+)(?:->|<-)(?P<peer>\d+)")


class Half(StrEnum):
    """One half of a message between two ranks: the send or the recv."""

    SEND = "send"
    RECV = "recv"

    @property
    def other(self) -> "Half":
        return Half.RECV if self is Half.SEND else Half.SEND

    def name_between(self, rank: str | int, peer: str | int) -> str:
        return f"{self} {rank}{'->' if self is Half.SEND else '<-'}{peer}"


class Peer(NamedTuple):
    """The global rank with which a rank exchanges a message, and whether the rank itself sends or receives.

    `half` is `SEND` if the rank that issued the operation sends to the peer, else `RECV`.
    """

    half: Half
    rank: int


def other_half_name(match: re.Match[str]) -> str:
    """Return the name of the recv that belongs to a send, or of the send that belongs to a recv.

    `match` is the name of the given operation, parsed by `NAME`.
    """
    return Half(match["verb"]).other.name_between(match["peer"], match["me"])


def peer_of(job: Job, op: Op) -> Peer | None:
    """Return the peer of a send or recv; None for other operations, or if the group has no such known member."""
    match = NAME.fullmatch(job.operation(op))
    members = job.groups[op.group].ranks
    # A group whose members were inferred may lack some.
    if not match or int(match["peer"]) >= len(members):
        return None
    return Peer(Half(match["verb"]), members[int(match["peer"])])


def find_absent_peers(job: Job, current: Op) -> list[int]:
    """Return the peers because of which a batch of sends and receives cannot complete, ascending.

    A batch is a set of operations that a rank launched together; `current` is any operation of it. The result has the
    peers that have not issued the matching recv or send. If there are none, it has the peers whose own batch waits for
    a third rank, because NCCL completes a batch only as a whole.
    """
    if lacking := _find_unmet_peers(job, current):
        return lacking
    current_ops = {peer.rank: job.ranks[peer.rank].current for peer in _count_peers(job, current)}
    return sorted(rank for rank, other in current_ops.items() if other and _find_unmet_peers(job, other))


def _find_unmet_peers(job: Job, current: Op) -> list[int]:
    """Return, ascending, the peers that have yet to issue the counterpart of a send or recv in the batch of `current`.

    A batch is a set of operations that a rank launched together.
    """
    wanted = _count_peers(job, current)
    return sorted({peer.rank for peer, count in wanted.items() if _count_halves(job, current, peer) < count})


def _count_peers(job: Job, current: Op) -> Counter[Peer]:
    """Return how many sends and how many receives the batch of `current` has for each peer.

    A batch is a set of operations that a rank launched together.
    """
    return Counter(peer for op in find_batch(job.ranks[current.rank], current) if (peer := peer_of(job, op)))


def _count_halves(job: Job, current: Op, peer: Peer) -> int:
    """Return how many sends or receives `peer` has issued to match those that the rank of `current` has with it.

    `peer` is the rank to which the rank of `current` sends, or from which it receives. Only the peer's current
    operation, and operations that the peer launched together with it, are counted. The result is 0 if the peer is not
    in a send or recv of this process group.
    """
    state = job.ranks.get(peer.rank)
    if state is None or state.current is None or not state.current.p2p or state.current.group != current.group:
        return 0
    wanted = Peer(peer.half.other, current.rank)
    return sum(peer_of(job, op) == wanted for op in find_batch(state, state.current))


def find_other_half(job: Job, current: Op, peer: Peer) -> Op | None:
    """Return the operation of `peer` that is the counterpart of `current`, a send or recv of another rank.

    Only the peer's first pending operation, and operations launched together with it, are searched. The result is None
    if none of them matches.
    """
    state = job.ranks[peer.rank]
    wanted = Peer(peer.half.other, current.rank)
    return next((op for op in find_batch(state, state.pending[0]) if peer_of(job, op) == wanted), None)


def find_batch(state: RankState, current: Op) -> list[Op]:
    """Return the batch of `current`: the pending sends and receives that the rank launched together with it.

    They have the same process group and the same p2p sequence number.
    """
    return [op for op in state.pending if op.p2p and (op.group, op.p2p_seq) == (current.group, current.p2p_seq)]


def all_in_messages(job: Job, ranks: list[int]) -> bool:
    """Return whether all of the `ranks` that left a dump are in a send or recv; False if none of them left one."""
    current_ops = [job.ranks[rank].current for rank in ranks if rank in job.ranks]
    return bool(current_ops) and all(current is not None and current.p2p for current in current_ops)


# Add gloo's sends and receives, which Flight Recorder does not record, to a `Job` as pending operations.
#
# A message is one send and its recv. The project's recorders count messages in `p2p_R.bin`. Each row of this file is
# about one send or recv of rank R: how often it was called, the time and tag of the last call, and the names of the
# message and its group. A rank whose stack is in a send or recv waits for its peer if the peer has made fewer of the
# matching calls. If both have made equally many calls and both wait, the last send and recv do not match because
# their tags differ.

ROW = struct.Struct("<qq40sq64s")
_FILE_BYTES = 1 << 20
_WAIT = "_wait_for_message"
"""The function of this project's recorders that waits for the result of `isend`, `irecv` or `batch_isend_irecv`."""
_CALLS = {"send", "recv", "isend", "irecv", "batch_isend_irecv", "_wait_batch_p2p", _WAIT}
_LIBRARY = re.compile(r"[/\\]torch[/\\]distributed[/\\]|[/\\]recorders[/\\]hang[/\\]")
_INNERMOST_FRAMES = 6
"""The number of innermost frames that are searched for a send or recv; a frame farther out now calls something else."""


class MessageName(NamedTuple):
    """The name of a process group, and the name of a send or recv in it: `send 0->1` or `recv 1<-0`.

    The numbers are ranks within the group; the first one is the rank that issued the operation.
    """

    group: str
    name: str


class MessageCount(NamedTuple):
    """How often a rank has issued one send or recv (`calls`), and the time and the tag of its last call.

    Older files have no tags; `tag` is then 0.
    """

    calls: int
    time_ns: int
    tag: int


MessageCounts = Mapping[MessageName, MessageCount]
AllCounts = Mapping[int, MessageCounts]
"""{global rank: how often it has issued each send and recv}."""


def read_message_counts(path: Path) -> MessageCounts:
    """Return how often a rank has issued each send and recv, from its `p2p_R.bin` (R: the rank).

    The result is empty if the file cannot be read.
    """
    return {
        MessageName(decoded(group), decoded(name)): MessageCount(calls, time_ns, tag)
        for calls, time_ns, name, tag, group in read_rows(path)
        # The same file has rows about collectives with a root, which `roots` reads.
        if name.startswith((b"send ", b"recv "))
    }


def read_rows(path: Path) -> list[tuple[int, int, bytes, int, bytes]]:
    """Return (number of calls, time in ns, name, tag, group) for each used row of a file `p2p_R.bin` (R: the rank).

    The names are zero-padded bytes. The result is empty if the file cannot be read.
    """
    try:
        with open_regular(path) as file:
            content = file.read(_FILE_BYTES)
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
    return any(f.name in _CALLS and _LIBRARY.search(f.filename) for f in frames[:_INNERMOST_FRAMES])


def add_messages(job: Job, side: SideFiles) -> None:
    """Add to each rank whose stack is in a send or receive the gloo messages for which it waits.

    Flight Recorder does not record these. A message is added if the peer has not issued the counterpart, or else if the
    peer waits with another tag. The messages come before all recorded operations in the rank's `pending`.
    """
    known = {rank: read_message_counts(path) for rank, path in side.message_files.items()}
    stacks = {rank: side.main_stack(rank) for rank in job.ranks if known.get(rank)}
    waiting = {rank: known[rank] for rank, stack in stacks.items() if in_message(stack)}
    for rank, state in job.ranks.items():
        if rank in waiting:
            stack = stacks[rank]
            unmet = _find_unmet(job, rank, known) or _find_other_tag(job, rank, waiting)
            launch = max((issued.calls for issued in unmet.values()), default=0)
            job.stacks.append(stack)
            # In front of the others: a rank that waits in a message has not come to a later collective.
            state.pending[:0] = [op for m, issued in unmet.items() if (op := operation(job, state, m, issued, launch))]


def _find_unmet(job: Job, rank: int, known: AllCounts) -> MessageCounts:
    """Return the sends and receives of `rank`, with their counts, whose counterpart its peer has issued fewer times.

    `rank` waits for the peer in one of these messages. `known` has the counts of all ranks.
    """
    return {message: issued for message, issued in known[rank].items() if _is_unmet(job, rank, message, issued, known)}


def _is_unmet(job: Job, rank: int, message: MessageName, issued: MessageCount, known: AllCounts) -> bool:
    """Return whether the peer issued the counterpart of a send or recv fewer times than `rank` issued `message`.

    `issued` is the count of `message` on `rank`; `known` has the counts of all ranks. A send is never unmet if its
    peer has received all messages that were sent to it.
    """
    half = find_half(job, rank, message)
    if half is None:
        return False
    other = known.get(half.peer, {}).get(half.message)
    if message.name.startswith("send") and _has_received_all(job, half.peer, message.group, known):
        return False
    return other is None or other.calls < issued.calls


def _has_received_all(job: Job, rank: int, group: str, known: AllCounts) -> bool:
    """Return whether a rank has received all messages sent to it in `group`, some with a recv from any source.

    A recv from any source does not show whose message it took, so total counts are compared. The last such recv may
    still wait, so the rank must have called recv more often than messages were sent to it. `known` has the counts of
    all ranks. The result is False if the rank called no recv from any source.
    """
    number = _group_number(job, rank, group)
    if number is None:
        return False
    own = job.groups[number].ranks.index(rank)
    from_any = known.get(rank, {}).get(MessageName(group, f"recv {own}<-any"))
    received = sum(m.calls for name, m in known.get(rank, {}).items() if _is_half(name, group, f"recv {own}<-"))
    sent = sum(
        m.calls for counts in known.values() for name, m in counts.items() if _is_half(name, group, "send ", own)
    )
    return from_any is not None and received > sent


def _is_half(message: MessageName, group: str, start: str, to: int | None = None) -> bool:
    """Return whether a message belongs to `group`, has a name that begins with `start`, and goes to rank `to`.

    `to` is a rank within the group; None means any receiver.
    """
    ends = to is None or message.name.endswith(f"->{to}")
    return message.group == group and message.name.startswith(start) and ends


class OtherHalf(NamedTuple):
    """The counterpart of a send or recv: the peer's global rank, and the name of the operation expected from it."""

    peer: int
    message: MessageName


def find_half(job: Job, rank: int, message: MessageName) -> OtherHalf | None:
    """Return the counterpart of a send or recv of `rank`; None if the process group or the peer is not known."""
    match, number = NAME.fullmatch(message.name), _group_number(job, rank, message.group)
    if not match or number is None or int(match["peer"]) >= len(job.groups[number].ranks):
        return None
    return OtherHalf(job.groups[number].ranks[int(match["peer"])], MessageName(message.group, other_half_name(match)))


def _find_other_tag(job: Job, rank: int, waiting: AllCounts) -> MessageCounts:
    """Return {message: count} for the last send or recv of `rank`, if its peer waits with another tag.

    Such a send and recv never match. `waiting` has the counts of the ranks whose stack is in a send or receive. The
    result is empty if the tags are equal, or if the last message of the peer is a different one.
    """
    message, issued = max(waiting[rank].items(), key=lambda item: item[1].time_ns)
    half = find_half(job, rank, message)
    theirs = waiting.get(half.peer) if half else None
    if half is None or not theirs or max(theirs, key=lambda m: theirs[m].time_ns) != half.message:
        return {}
    other = theirs[half.message]
    return {message: issued} if other.calls == issued.calls and other.tag != issued.tag else {}


def operation(job: Job, state: RankState, message: MessageName, issued: MessageCount, launch: int) -> Op | None:
    """Return an unrecorded gloo message as a pending operation, in the same form as NCCL's entries.

    `state` is the rank that issued `message`, and `issued` has the time and tag of its last call. `launch` becomes the
    p2p sequence number: all messages of the rank that lack a counterpart get the same number, so that they count as
    launched together. The signature is appended to `job.signatures`; the stack is the last one in `job.stacks`. The
    result is None if the group is not known.
    """
    number = _group_number(job, state.rank, message.group)
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


def _group_number(job: Job, rank: int, name: str) -> int | None:
    return next((i for i, g in enumerate(job.groups) if g.name == name and rank in g.ranks), None)
