"""Blame nodes that stopped answering: they died, or lost their network.

A lost node explains ranks without a dump only if nothing else explains the hang: a node may also be cut off while all
ranks wait for a rank that is stuck elsewhere.
"""

from collections.abc import Sequence

import msgspec

from analyzers.hangs.classify.cause import Cause, HangContext
from analyzers.hangs.model import Culprit, HangClass, Reason
from analyzers.hangs.reading.exits import is_victim
from analyzers.node_health import LostNode

CONFIDENCE = 0.8


def blame_lost_nodes(context: HangContext, causes: Sequence[Cause]) -> list[Cause]:
    """Return `causes` in which a lost node is blamed instead of each of its ranks without a dump.

    Other causes stay. If `causes` is empty, lost nodes are blamed only if some rank ended because it gave up waiting
    for another.
    """
    lost = [node for node in context.side.gaps.lost if set(node.ranks).difference(context.job.ranks)]
    silent = [cause for cause in causes if cause.reason is Reason.NO_DUMP]
    gave_up = sorted(rank for rank, end in context.side.exits.items() if is_victim(end))
    if not lost or (causes and not silent) or not (causes or gave_up):
        return list(causes)
    victims = sorted({rank for cause in silent for rank in cause.victims}.union(gave_up))
    blamed = [node for node in lost if not silent or any(set(node.ranks) & set(cause.ranks) for cause in silent)]
    explained = {rank for node in blamed for rank in node.ranks}
    others = [left for cause in causes if (left := without(cause, explained))]
    return [*(lost_node(context, node, silent, victims) for node in blamed), *others]


def without(cause: Cause, ranks: set[int]) -> Cause | None:
    """Return `cause` without `ranks` as culprits, if it blames ranks for leaving no dump; None if no culprit remains.

    A cause of any other kind is returned unchanged.
    """
    if cause.reason is not Reason.NO_DUMP or ranks.isdisjoint(cause.ranks):
        return cause
    left = [rank for rank in cause.ranks if rank not in ranks]
    return cause.with_ranks(left) if left else None


def lost_node(context: HangContext, node: LostNode, silent: Sequence[Cause], victims: Sequence[int]) -> Cause:
    """Return a `Cause` which says that `node` was lost; all of its ranks are culprits, and `victims` wait for them.

    `silent` are the causes that blame ranks for leaving no dump. The first of these that blames a rank of this node
    shows in which operation the victims wait; without one the operation is unknown.
    """
    steps = [beat.step for rank in node.ranks if (beat := context.side.last_beat(rank))]
    found = next((cause.culprit for cause in silent if set(cause.ranks) & set(node.ranks)), None)
    culprit = msgspec.structs.replace(
        found or Culprit(ranks=[], kind=HangClass.DEAD),
        ranks=list(node.ranks),
        kind=HangClass.DEAD,
        victims=[rank for rank in victims if rank not in node.ranks],
        step=max(steps, default=0) or None,
        confidence=CONFIDENCE,
    )
    return Cause(culprit, Reason.LOST_NODE, node=node)
