"""Find the rank that sends to or receives from the wrong peer, or that issues one send or recv too many.

The wait-for graph does not show such errors: the wrongly addressed peer looks as if it had left out a recv, and the
peer that was left out waits as if its partner were stuck. But the counts of all sends and receives show them; the
project's recorders write these counts on gloo.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from analyzers.hangs.classify.cause import Cause, HangContext, RanksInOp, make_cause
from analyzers.hangs.graph.wait_graph import OpNode
from analyzers.hangs.model import HangClass, Reason, user_frame
from analyzers.hangs.reading.p2p import (
    AllCounts,
    MessageCounts,
    MessageName,
    OtherHalf,
    find_half,
    read_message_counts,
)

_EXPLAINED = (HangClass.UNMATCHED_P2P, HangClass.HOST_STUCK, HangClass.ALL_ARRIVED)
"""The classes of causes whose real reason may be a send or recv with a wrong peer."""
CONFIDENCE = 0.8
_USUAL_CALLS = 3
"""A rank has a history of messages if it has issued one of them at least this many times."""


class Stray(NamedTuple):
    """A send or recv with the wrong peer: `rank` issued `issued`, but should have issued `expected`.

    The peer of `issued` never issued the counterpart, and another peer waits for `expected`.
    """

    rank: int
    issued: MessageName
    expected: MessageName


class Excess(NamedTuple):
    """A send or recv that `rank` issued once too often: its peer issued the counterpart one time less.

    All other pairs of ranks in the process group issued theirs as often as this peer. `is_first`: instead, it is the
    first message of this kind between the two, long after the rank's first messages with others.
    """

    rank: int
    issued: MessageName
    is_first: bool = False


def find_wrong_messages(context: HangContext, causes: Sequence[Cause]) -> list[Cause]:
    """Return, in a list, a `Cause` that blames a rank for a send or recv with the wrong peer, or for one too many.

    `causes` are those that other rules have found. The list is empty if one of them already explains the hang (its
    class is not in `_EXPLAINED`), or if the counts do not show exactly one such rank.
    """
    if not causes or any(cause.kind not in _EXPLAINED for cause in causes):
        return []
    known = {rank: read_message_counts(path) for rank, path in context.side.message_files.items()}
    strays = [stray for rank in sorted(known) for stray in _find_strays(context, rank, known)]
    if len({stray.rank for stray in strays}) == 1:
        return _blame_stray(context, strays[0])
    excesses = [excess for cause in causes for excess in _find_excesses(context, cause, known)]
    return _blame_excess(context, excesses[0]) if len({excess.rank for excess in excesses}) == 1 else []


def _find_strays(context: HangContext, rank: int, known: AllCounts) -> Iterator[Stray]:
    """Yield the sends and receives of a rank that went to a wrong peer, each with the operation expected instead.

    The wrong peer never issued the counterpart; it waits in an operation, so it is not just late. `known` has the
    counts of sends and receives of all ranks.
    """
    lacking = _find_lacking(context, rank, known)
    for message in known[rank]:
        half = find_half(context.job, rank, message)
        if half is None or half.message in known.get(half.peer, {}) or half.peer not in context.graph.waits_in:
            continue
        # A receive from any rank may be the other half.
        if _receives_from_any(known.get(half.peer, {})):
            continue
        verb = message.name.partition(" ")[0]
        same = [other for other in lacking if other.group == message.group and other.name.startswith(verb)]
        yield from (Stray(rank, message, other) for other in same if other != message)


def _find_lacking(context: HangContext, rank: int, known: AllCounts) -> list[MessageName]:
    """Return the sends and receives that a rank issued less often than its peers issued the matching operations.

    `known` has the counts of all ranks.
    """
    return [
        half.message
        for peer, counts in known.items()
        for message, issued in counts.items()
        if (half := find_half(context.job, peer, message)) and half.peer == rank and peer != rank
        if _calls_of(known, half) < issued.calls
    ]


def _calls_of(known: AllCounts, half: OtherHalf) -> int:
    """Return how often a peer issued its half of a message; the other half of a send is a recv, and the reverse.

    `half` names the peer and its send or recv; `known` has the counts of all ranks.
    """
    counts = known.get(half.peer, {}).get(half.message)
    return counts.calls if counts else 0


def _receives_from_any(counts: MessageCounts) -> bool:
    """Return whether a rank has called recv without a source: its counts then do not show whose messages it took."""
    return any(message.name.endswith("<-any") for message in counts)


def _find_excesses(context: HangContext, cause: Cause, known: AllCounts) -> Iterator[Excess]:
    """Yield each send or recv that a victim issued once more often than a culprit issued the matching recv or send.

    It is yielded only if all other pairs of ranks in the group issued theirs as often as this culprit, or if the two
    ranks had never exchanged such a message before. `cause` has the victims and culprits; `known` has the counts of all
    ranks.
    """
    for rank in cause.victims:
        for message, issued in known.get(rank, {}).items():
            half = find_half(context.job, rank, message)
            if half is None or half.peer not in cause.ranks or _calls_of(known, half) != issued.calls - 1:
                continue
            others = _calls_of_other_pairs(context, known, {rank, half.peer}, message)
            if others == {issued.calls - 1}:
                yield Excess(rank, message)
            elif issued.calls == 1 and _has_gone_on(context, half.peer) and _has_history(known[rank]):
                yield Excess(rank, message, is_first=True)


def _has_gone_on(context: HangContext, rank: int) -> bool:
    """Return whether a rank is in a collective, so that it will not issue a message that others wait for now."""
    node = context.graph.waits_in.get(rank)
    return node is not None and not node.is_p2p


def _has_history(counts: MessageCounts) -> bool:
    """Return whether a rank has issued some of its messages again and again."""
    return max((message.calls for message in counts.values()), default=0) >= _USUAL_CALLS


def _calls_of_other_pairs(context: HangContext, known: AllCounts, pair: set[int], message: MessageName) -> set[int]:
    """Return the distinct numbers of sends (of recvs, if `message` is a recv) that other pairs of ranks issued.

    Other pairs are all pairs in the process group of `message` except `pair`. -1 stands for a pair whose numbers of
    sends and recvs differ. `known` has the counts of all ranks.
    """
    verb = message.name.partition(" ")[0]
    halves = [
        (counts[name].calls, half)
        for rank, counts in known.items()
        for name in counts
        if name.group == message.group and name.name.startswith(verb)
        if (half := find_half(context.job, rank, name)) and not pair & {rank, half.peer}
    ]
    return {calls if _calls_of(known, half) == calls else -1 for calls, half in halves}


def _blame_stray(context: HangContext, stray: Stray) -> list[Cause]:
    """Return, in a list, a `Cause` that blames a rank for a send or recv with the wrong peer.

    The list is empty if neither the rank nor the peer that was left out waits in a send or recv.
    """
    expected = find_half(context.job, stray.rank, stray.expected)
    waiting = [stray.rank, *([expected.peer] if expected else [])]
    cause = _make_message_cause(context, Reason.OTHER_PEER, stray.rank, waiting)
    sides = (_as_side(context, stray.rank, message) for message in (stray.issued, stray.expected))
    return [replace(cause, issued=next(sides), expected=next(sides))] if cause else []


def _blame_excess(context: HangContext, excess: Excess) -> list[Cause]:
    """Return, in a list, a `Cause` that blames a rank for one send or recv too many; empty if it waits in none."""
    reason = Reason.NEVER_EXCHANGED if excess.is_first else Reason.ONE_TOO_MANY
    cause = _make_message_cause(context, reason, excess.rank, [excess.rank])
    return [replace(cause, issued=_as_side(context, excess.rank, excess.issued))] if cause else []


def _make_message_cause(context: HangContext, reason: Reason, rank: int, waiting: Sequence[int]) -> Cause | None:
    """Return a `Cause` that blames `rank` for the send or recv in which one of the ranks `waiting` waits.

    The first of the ranks `waiting` that is in a send or recv decides; the result is None if none is. `reason` is the
    evidence against `rank`; all other ranks are victims.
    """
    nodes = (context.graph.waits_in.get(other) for other in waiting)
    node: OpNode | None = next((node for node in nodes if node and node.is_p2p), None)
    if node is None:
        return None
    victims = [other for other in range(context.job.world_size) if other != rank]
    return make_cause(context, HangClass.UNMATCHED_P2P, reason, [rank], node, victims, confidence=CONFIDENCE)


def _as_side(context: HangContext, rank: int, message: MessageName) -> RanksInOp:
    """Return a `RanksInOp` for a rank and its send or recv, at the current line of the rank's main thread."""
    line = user_frame(context.side.main_stack(rank))
    return RanksInOp([rank], message.name, "", line, message.group, 0, p2p=True)
