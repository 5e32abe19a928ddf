"""Find the cause for one root of the wait-for graph; a root is where a chain of waiting ranks ends.

A root is a cycle of ranks, a single rank, or an operation that all its ranks have joined.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import msgspec

from analyzers.hangs.classify.cause import Cause, HangContext, make_cause, ranks_at_node, ranks_in_op
from analyzers.hangs.classify.differing_programs import blame_deviation, blame_divergence
from analyzers.hangs.classify.single_rank import classify_rank, is_in_flight, is_newer_than_skew
from analyzers.hangs.graph.divergence import Divergence, find_divergence
from analyzers.hangs.graph.program_order import Deviation
from analyzers.hangs.graph.wait_graph import Node, OpNode, find_victims, has_arrived
from analyzers.hangs.model import HangClass, Op, Reason, user_frame
from analyzers.hangs.reading.p2p import all_in_messages, find_other_half, peer_of
from analyzers.hangs.reading.side_files import SideFiles

_ALL_ARRIVED_CONFIDENCE = 0.8
_DIFFERENT_HALVES_CONFIDENCE = 0.7


def _classify_root(context: HangContext, root: list[Node]) -> Cause | None:
    """Return a `Cause` for one root of the wait-for graph; `root` has its nodes, which are ranks and operations.

    The result is None if the operations may still be in flight, or if the root is a single rank for which no other
    rank waits.
    """
    ranks = sorted(node for node in root if isinstance(node, int))
    nodes = [node for node in root if isinstance(node, OpNode)]
    waiting = find_victims(context.graph, root)
    if len(ranks) > 1:
        return _classify_ring(context, ranks, nodes, waiting)
    if ranks:
        # A rank that no other waits for is idle or ahead, not a culprit.
        return classify_rank(context, ranks[0], waiting) if waiting else None
    return _classify_operation(context, nodes[0])


def _classify_ring(context: HangContext, ranks: list[int], nodes: list[OpNode], waiting: list[int]) -> Cause | None:
    """Return a `Cause` for `ranks` that wait for each other in a cycle; None if the operations may still be in flight.

    `nodes` are the operations in the cycle; `waiting` are ranks outside the cycle that wait for a rank in it. A skipped
    operation also leads to such a cycle, and is then the cause. The result is also None if a ring buffer lost the first
    pending operations of a rank.
    """
    lost_front = any(context.job.ranks[rank].overwritten for rank in ranks if rank in context.job.ranks)
    if lost_front or all(is_in_flight(context, node) for node in nodes):
        return None
    deviations = [d for rank in ranks if (d := context.programs.deviation(rank))]
    # Another operation at the same point is a mismatch. The same one in another group is an order of groups: below.
    in_group = [d for d in deviations if d.kind is not HangClass.MISMATCH or d.issued.group == d.expected.group]
    if clear := in_group or [d for d in deviations if _is_alone_at_line(context, d)]:
        return blame_deviation(context, clear, min(nodes), [*ranks, *waiting])
    if divergence := _find_decided_divergence(context, nodes):
        return blame_divergence(context, divergence, [*ranks, *waiting])
    if all_in_messages(context.job, ranks):
        reason = Reason.BOTH_LACK_OTHER_HALF
        cause = make_cause(context, HangClass.UNMATCHED_P2P, reason, ranks, min(nodes), waiting)
        return replace(cause, sides=tuple(ranks_at_node(context, node) for node in sorted(nodes, key=_sender)))
    messages = [node for node in nodes if node.is_p2p]
    if absent := sorted({rank for node in messages for rank in context.graph.absent[node]}):
        others = sorted({*ranks, *waiting} - set(absent))
        reason = Reason.NEVER_ISSUED_OTHER_HALF
        return make_cause(context, HangClass.UNMATCHED_P2P, reason, absent, min(messages), others)
    return _blame_order(context, ranks, nodes, waiting)


def _sender(node: OpNode) -> int:
    return node.sender


def _is_alone_at_line(context: HangContext, deviation: Deviation) -> bool:
    """Return whether only the deviating rank has issued an operation at the line of its deviating operation.

    Such a rank is in a branch of its own. If ranks merely use their process groups in different orders, all of them
    reach each line.
    """
    job = context.job
    line = job.line(deviation.issued)
    others = {op.stack for rank, state in job.ranks.items() if rank != deviation.rank for op in state.ops}
    return line is not None and all(user_frame(job.stacks[stack]) != line for stack in others)


def _find_decided_divergence(context: HangContext, nodes: list[OpNode]) -> Divergence | None:
    """Return the first `Divergence` with known culprits among the collectives in `nodes`; None without one.

    A divergence describes the different operations that members of a group issued under one sequence number.
    """
    found = (find_divergence(context.job, node.group, node.seq) for node in nodes if not node.is_p2p)
    return next((divergence for divergence in found if divergence and divergence.culprits), None)


def _blame_order(context: HangContext, ranks: list[int], nodes: list[OpNode], waiting: list[int]) -> Cause:
    """Return a `Cause` which says that ranks in a cycle used their process groups in different orders.

    `ranks` and `nodes` are the ranks and operations of the cycle. `waiting` are other ranks that wait for a rank in the
    cycle. The culprits are the minority of the cycle, or all of its ranks if no order has a majority.
    """
    odd = _find_minority(context, ranks, nodes)
    others = sorted({*ranks, *waiting} - set(odd)) if odd else waiting
    cause = make_cause(context, HangClass.ORDER_CYCLE, Reason.OTHER_ORDER, odd or ranks, min(nodes), others)
    return replace(cause, sides=tuple(ranks_at_node(context, node) for node in sorted(nodes)))


def _find_minority(context: HangContext, ranks: list[int], nodes: list[OpNode]) -> list[int]:
    """Return the ranks of a cycle that are not in the operation that most of its ranks are in; empty in case of a tie.

    `nodes` are the operations in the cycle. If the cycle itself has no majority, ranks outside the cycle that are in
    the same operations count, too. Example: ranks 2 and 3 wait for each other, and ranks 0 and 1 are in the operation
    of rank 2; then rank 3 is the minority.
    """
    inside = set(ranks)
    arrived = sorted((set(context.graph.arrived(node)) for node in nodes), key=len)
    sides = sorted((inside & members for members in arrived), key=len)
    return _other_than_largest(sides) or sorted(inside.intersection(_other_than_largest(arrived)))


def _other_than_largest(sides: Sequence[set[int]]) -> list[int]:
    """Return the ranks of all sets but the last, if the last set has more ranks than all others together; else none.

    `sides` are sorted by size, so that the largest set comes last.
    """
    *smaller, largest = sides
    odd = set[int]().union(*smaller)
    return sorted(odd - largest) if sum(map(len, smaller)) < len(largest) else []


def _classify_operation(context: HangContext, node: OpNode) -> Cause | None:
    """Return a `Cause` for an operation that all ranks have joined but that does not complete.

    The result is None if the operation may still be in flight.
    """
    arrived = context.graph.arrived(node)
    waiting = find_victims(context.graph, [node, *arrived])
    proves_nothing = is_in_flight(context, node) or node in context.graph.inconclusive
    if node.is_p2p:
        return None if proves_nothing else _classify_pair(context, node, waiting)
    # Differing signatures are proof at any time; all else needs an operation that should have completed.
    if divergence := find_divergence(context.job, node.group, node.seq):
        return blame_divergence(context, divergence, [*arrived, *waiting])
    if proves_nothing or is_newer_than_skew(context, node):
        return None
    members = context.group(node).ranks
    here = set(arrived)
    completed = [m for m in members if m not in here and has_arrived(context.job.ranks.get(m), node)]
    others = sorted(set(waiting) - set(arrived))
    if completed and context.is_gloo and not context.side.collection:
        # Nothing shows how much time lies between the dumps, and gloo has no device that could lag.
        return None
    if completed:
        cause = make_cause(context, HangClass.LAGGING, Reason.OTHERS_COMPLETED, arrived, node, others)
        return replace(cause, completed=len(completed), members=len(members))
    kind, reason = HangClass.ALL_ARRIVED, Reason.ALL_JOINED
    return make_cause(context, kind, reason, arrived, node, others, confidence=_ALL_ARRIVED_CONFIDENCE)


def _classify_pair(context: HangContext, node: OpNode, waiting: list[int]) -> Cause | None:
    """Return a `Cause` for a send and its recv that were both issued but do not complete.

    `node` has the sends and receives that one of the two ranks launched together; `waiting` are other ranks that wait
    for this rank. The pair is reported once, for the lower rank: the result is None for the higher rank. It is also
    None if the peer is not known.
    """
    current = context.job.ranks[node.sender].current
    peer = peer_of(context.job, current) if current else None
    if current is None or peer is None:
        return None
    # What the peer's batch lacks may be this rank's to issue.
    if context.graph.absent[context.graph.waits_in[peer.rank]]:
        return make_cause(context, HangClass.UNMATCHED_P2P, Reason.OTHER_LAUNCH, [node.sender], node, waiting)
    # Each half is a root of its own; the higher rank would repeat the cause.
    if peer.rank < node.sender:
        return None
    other = find_other_half(context.job, current, peer)
    if other and _have_other_shapes(context, current, other):
        return _blame_halves(context, current, other, node, waiting)
    if other and _have_other_tags(context, current, other):
        return _blame_tags(context, current, other, node, waiting)
    pair, reason = [node.sender, peer.rank], Reason.BOTH_HALVES_ISSUED
    return make_cause(context, HangClass.ALL_ARRIVED, reason, pair, node, waiting)


def _have_other_shapes(context: HangContext, current: Op, other: Op) -> bool:
    """Return whether a send or recv (`current`) and its counterpart (`other`) have tensors of different shape or dtype.

    The result is False if shape or dtype is not recorded, as with gloo.
    """
    shapes = [context.job.signature(op).shape for op in (current, other)]
    return shapes[0] != shapes[1] and all(shapes)


def _have_other_tags(context: HangContext, current: Op, other: Op) -> bool:
    """Return whether a send and a recv have different tags, so that they can never match; False if a tag is unknown."""
    tags = [context.job.signature(op).tag for op in (current, other)]
    return tags[0] != tags[1] and None not in tags


def _blame_tags(context: HangContext, current: Op, other: Op, node: OpNode, waiting: list[int]) -> Cause:
    """Return a `Cause` which says that a send and its recv do not match because their tags differ.

    `current` and `other` are the two operations, `node` is the graph's node of `current`, and `waiting` are other ranks
    that wait for it. The shapes do not matter here, so each item of the cause's `sides` has the tag in its field
    `shape`.
    """
    pair = [current.rank, other.rank]
    cause = make_cause(context, HangClass.UNMATCHED_P2P, Reason.DIFFERENT_TAGS, pair, node, waiting)
    sides = ((op, ranks_in_op(context, [op.rank], op)) for op in (current, other))
    return replace(cause, sides=tuple(replace(s, shape=f"tag {context.job.signature(op).tag}") for op, s in sides))


def _blame_halves(context: HangContext, current: Op, other: Op, node: OpNode, waiting: list[int]) -> Cause:
    """Return a `Cause` which says that a send and its recv differ in the size or dtype of their tensors.

    `current` and `other` are the two operations, `node` is the graph's node of `current`, and `waiting` are other
    ranks that wait for it.
    """
    pair, reason = [current.rank, other.rank], Reason.DIFFERENT_HALVES
    cause = make_cause(
        context, HangClass.MISMATCH, reason, pair, node, waiting, confidence=_DIFFERENT_HALVES_CONFIDENCE
    )
    return replace(cause, sides=tuple(ranks_in_op(context, [op.rank], op) for op in (current, other)))


# Find the cause for each root of the wait-for graph, quickly even if thousands of ranks left no files.
#
# A job of thousands of ranks may have left only two dumps. The time to classify every rank without files separately
# would grow with the square of the number of ranks. So ranks without files form groups: in each group, the same
# operations wait for the rank, and the rank belongs to the same process groups. Each group is classified once.

Place = tuple[tuple[object, ...], tuple[int, ...]]
"""The operations in which others wait for a rank, and the indexes in `Job.groups` of the rank's process groups."""


def classify_roots(context: HangContext, roots: Iterable[list[Node]]) -> list[Cause]:
    """Return the `Cause` of each root of the wait-for graph that has one; chains of waiting ranks end in roots.

    Ranks without files share one classification if others wait for them in the same operations and they are in the same
    process groups. So thousands of them take no longer than one.
    """
    places, known = _places_of(context), _ranks_with_files(context.side) | set(context.job.ranks)
    representatives: dict[Place, Cause | None] = {}
    causes: list[Cause | None] = []
    for root in roots:
        rank = root[0] if len(root) == 1 and isinstance(root[0], int) else None
        if rank is None or rank in known or rank not in places:
            causes.append(_classify_root(context, root))
            continue
        place = places[rank]
        if place not in representatives:
            representatives[place] = _classify_root(context, root)
        causes.append(_of_rank(representatives[place], rank))
    return [cause for cause in causes if cause]


def _places_of(context: HangContext) -> Mapping[int, Place]:
    """Return, for each rank that others wait for, its `Place`: (operations in which they wait, groups of the rank).

    Groups are given by their indexes in `Job.groups`.
    """
    waiting: dict[int, list[object]] = defaultdict(list)
    for node, ranks in context.graph.absent.items():
        for rank in ranks:
            waiting[rank].append(node)
    groups: dict[int, list[int]] = defaultdict(list)
    for number, group in enumerate(context.job.groups):
        for rank in group.ranks:
            groups[rank].append(number)
    return {rank: (tuple(nodes), tuple(groups[rank])) for rank, nodes in waiting.items()}


def _ranks_with_files(side: SideFiles) -> set[int]:
    """Return the ranks about which any file besides the dumps has information."""
    words = side.last_words
    named = [*side.groups, *side.exits, *side.stack_files, *side.exit_codes, *side.log_files]
    answered = [rank for number in side.rounds for rank in number.ranks]
    return {*named, *answered, *words.beats, *words.signals, *words.thread_errors}


def _of_rank(cause: Cause | None, rank: int) -> Cause | None:
    """Return a copy of `cause`, which blames a single rank, that blames `rank` instead; None if `cause` is None.

    Both ranks are in the same groups, and other ranks wait for them in the same operations.
    """
    if cause is None or cause.ranks == [rank]:
        return cause
    return replace(cause, culprit=msgspec.structs.replace(cause.culprit, ranks=[rank]))
