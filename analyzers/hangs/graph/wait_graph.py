"""Build the wait-for graph: which rank waits in which operation, and for which ranks.

The nodes of the graph are ranks and operations. A rank has an edge to the operation that it is in; an operation has
edges to the ranks that have not arrived in it. A cause of the hang is a strongly connected component with no edge out
of it, here called a *root*: other ranks wait for its members, and its members wait for nobody outside.

For example, take four ranks in groups tp = {0, 1}, {2, 3} and dp = {0, 2}, {1, 3}; rank 3 runs its own code and issues
nothing. Ranks 2 and 1 are in collectives of tp {2, 3} and dp {1, 3}; rank 0 is in a collective of tp {0, 1}, which rank
1 has not joined yet:

    rank 0 -> tp {0, 1} -> rank 1 -> dp {1, 3} -> rank 3 <- tp {2, 3} <- rank 2

Rank 3 is the only node without an edge out of it, so it is the culprit (`host_stuck`). Walking backwards from rank 3
gives its victims, ranks 0 to 2. Now suppose instead that rank 3 is in a collective of the default group, which the
others have not joined. Then rank 3 -> default group -> rank 1 -> dp {1, 3} -> rank 3 is a cycle with no edge out of it:
an `order_cycle`.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from analyzers.hangs.model import Job, Op, RankState
from analyzers.hangs.reading.exits import RankEnd
from analyzers.hangs.reading.p2p import NAME, find_absent_peers, find_batch, other_half_name, peer_of
from analyzers.hangs.reading.side_files import SideFiles


class OpNode(NamedTuple):
    """An operation as a node of the wait-for graph.

    `group` is an index in `Job.groups`, `seq` a sequence number in this group. A collective is one node for all of its
    members; its `sender` is -1. The sends and receives that one rank (`sender`) launched together are one node; its
    `seq` is their p2p sequence number.
    """

    group: int
    seq: int
    sender: int = -1

    @property
    def is_p2p(self) -> bool:
        """Whether the node represents sends and receives rather than a collective."""
        return self.sender >= 0


Node = int | OpNode


_NEEDS_ALL = ("all", "barrier", "reduce_scatter")
"""The beginnings of the names of collectives that no member completes before all have joined.

In others, such as a broadcast, a member that only sends may be done at once.
"""


@dataclass
class WaitGraph:
    """The graph of which ranks wait in which operation, and for which absent ranks.

    `waits_in` maps each waiting rank to the operation that it is in. `absent` maps each such operation to the ranks
    that have not arrived in it.
    """

    waits_in: dict[int, OpNode] = field(default_factory=dict)
    absent: dict[OpNode, list[int]] = field(default_factory=dict)
    inconclusive: set[OpNode] = field(default_factory=set)
    """The operations that prove nothing if no rank is absent, because not all of their absent ranks are known.

    For example, the operation began after the dump of a rank was taken, or a ring buffer lost earlier operations.
    """

    def successors(self, node: Node) -> list[Node]:
        """Return the nodes that a node waits for.

        An operation waits for its absent ranks, and a rank waits for the operation that it is in.
        """
        if isinstance(node, OpNode):
            return list(self.absent[node])
        return [self.waits_in[node]] if node in self.waits_in else []

    def nodes(self) -> list[Node]:
        absent = {rank for ranks in self.absent.values() for rank in ranks}
        return [*sorted(absent | set(self.waits_in)), *self.absent]

    def arrived(self, node: OpNode) -> list[int]:
        """Return the ranks that are in an operation now, ascending; ranks that have completed it are not included."""
        return self._arrived.get(node, [])

    def operations_waiting_for(self, rank: int) -> list[OpNode]:
        return [node for node in self.predecessors.get(rank, ()) if isinstance(node, OpNode)]

    # Every root asks for these maps, and a job of thousands of ranks may have thousands of roots.
    @cached_property
    def _arrived(self) -> Mapping[OpNode, list[int]]:
        """The ranks that are in each operation, ascending."""
        arrived: dict[OpNode, list[int]] = defaultdict(list)
        for rank, node in sorted(self.waits_in.items()):
            arrived[node].append(rank)
        return arrived

    @cached_property
    def predecessors(self) -> Mapping[Node, list[Node]]:
        """The nodes that wait for each node."""
        waiting: dict[Node, list[Node]] = defaultdict(list)
        for node in self.nodes():
            for target in self.successors(node):
                waiting[target].append(node)
        return waiting


def build_graph(job: Job, side: SideFiles) -> WaitGraph:
    """Return the wait-for graph of the ranks that left a dump.

    A rank that died counts as being in no operation, even if it had issued one.
    """
    graph = WaitGraph()
    current_ops: dict[OpNode, list[Op]] = defaultdict(list)
    side.waited = _find_waiting(job, side)
    ends = {rank: end for rank in range(job.world_size) if (end := side.end(rank))}
    at_fault = {rank: end for rank, end in ends.items() if not end.is_victim}
    dead = set(at_fault)
    for rank, state in job.ranks.items():
        if (current := state.current) and rank not in dead:
            node = OpNode(current.group, current.p2p_seq, rank) if current.p2p else OpNode(current.group, current.seq)
            graph.waits_in[rank] = node
            current_ops[node].append(current)
    # A victim that ended without a dump had waited too; of a rank dumped early nothing later is known.
    early = _find_ranks_dumped_early(job, side)
    unknown = {rank for rank in ends if rank not in dead and rank not in job.ranks} | early
    unknown |= {rank for rank in range(job.world_size) if side.registered_later(rank)} | job.unread
    for node, ops in current_ops.items():
        absent = find_absent_peers(job, ops[0]) if node.is_p2p else _find_absent_members(job, node, at_fault)
        began_ns = min(op.created_ns for op in ops)
        proven = [m for m in absent if m not in unknown and not _began_after_dump(job, side, m, began_ns)]
        if len(absent) == 1 and absent[0] in ends and ends[absent[0]].is_shutdown and absent[0] not in job.ranks:
            # With it the operation would have completed, so it had not joined, whatever ended it later.
            proven = absent
        graph.absent[node] = proven
        is_outdated = all(op.rank in early for op in ops)
        if len(proven) < len(absent) or is_outdated or any(job.ranks[op.rank].overwritten for op in ops):
            graph.inconclusive.add(node)
    return graph


def _find_waiting(job: Job, side: SideFiles) -> frozenset[int]:
    """Return the ranks with an exit code that are in a collective in which another member is not seen to have arrived.

    Such a rank gave up waiting, and its exit code is not of an error of its own.
    """
    waiting: set[int] = set()
    missing: dict[OpNode, set[int]] = {}
    for rank in (rank for rank, code in side.exit_codes.items() if code > 0 and rank in job.ranks):
        current = job.ranks[rank].current
        if current and not current.p2p:
            node = OpNode(current.group, current.seq)
            if node not in missing:
                missing[node] = set(_find_absent_members(job, node, {}))
            waiting |= {rank} if missing[node] - {rank} else set()
    return frozenset(waiting)


def _began_after_dump(job: Job, side: SideFiles, rank: int, began_ns: int) -> bool:
    """Return whether an operation that began at `began_ns` is newer than a rank's dump, which then cannot show it.

    The time of a dump is the time of its request or, if the request was not recorded, the time of its file. The result
    is False if neither time is known.
    """
    taken_ns = side.asked_ns(rank) or job.taken_ns.get(rank)
    return taken_ns is not None and began_ns > taken_ns


def _find_ranks_dumped_early(job: Job, side: SideFiles) -> set[int]:
    """Return the ranks whose dumps were taken so early that they lack operations which other ranks had completed.

    A dump like this does not prove that its rank is late. With NCCL the set is empty if only one rank, or at most one
    rank in eight, is so far behind: such a rank may be at fault itself. Gloo flags an operation as done when it has
    failed, and a rank issues nothing after that. So with gloo another rank must have gone on since, and the set is
    empty if times of requests or errors of ranks are recorded, which show more.
    """
    is_gloo = any(signature.backend == "gloo" for signature in job.signatures)
    if is_gloo and (side.collection or side.exits):
        return set()
    completed: dict[int, int] = defaultdict(lambda: -1)
    for state in job.ranks.values():
        for group, position in state.positions.items():
            completed[group] = max(completed[group], position.completed)
    behind = {
        rank
        for rank, state in job.ranks.items()
        if any(-1 < position.enqueued < completed[group] for group, position in state.positions.items())
    }
    if is_gloo:
        return {rank for rank in behind if _others_went_on(job, rank)}
    return behind if len(behind) > max(1, len(job.ranks) // 8) else set()


def _others_went_on(job: Job, rank: int) -> bool:
    """Return whether another rank went on after a collective that needs all members and that `rank` has not issued."""
    for group, position in job.ranks[rank].positions.items():
        for member in job.groups[group].ranks:
            state = job.ranks.get(member)
            # Of the last collective of a rank it is not known whether it has completed or failed.
            if state is None or min(state.completed(group), state.enqueued(group) - 1) <= position.enqueued:
                continue
            later = (op for op in state.collectives(group) if position.enqueued < op.seq < state.enqueued(group))
            if any(op.done and job.operation(op).startswith(_NEEDS_ALL) for op in later):
                return True
    return False


def _find_absent_members(job: Job, node: OpNode, ends: Mapping[int, RankEnd]) -> list[int]:
    """Return the members of the process group of the collective `node` that are not seen to have arrived in it.

    These include members without a dump, and members that died before they completed the collective. `ends` has the
    ranks that ended by their own fault.
    """
    members = job.groups[node.group].ranks
    return [m for m in members if not has_arrived(job.ranks.get(m), node) or _died_before_end(job, node, ends.get(m))]


def _died_before_end(job: Job, node: OpNode, end: RankEnd | None) -> bool:
    """Return whether a rank that ended by its own fault, and left a dump, died before it had completed `node`.

    `end` is its end; None for all other ranks. If the rank raised inside of a collective, its last one has failed,
    although gloo may flag it as done.
    """
    if end is None:
        return False
    state = job.ranks[end.rank]
    failed = end.is_raised_in_collective and state.enqueued(node.group) == node.seq
    return failed or state.completed(node.group) < node.seq


def has_arrived(state: RankState | None, node: OpNode) -> bool:
    """Return whether a rank is in a collective or has completed it; False without a dump (`state` is None)."""
    if state is None:
        return False
    current = state.current
    if current and not current.p2p and (current.group, current.seq) == (node.group, node.seq):
        return True
    # Enqueued behind another operation that is not done, it has not arrived: streams run in order.
    is_pending = any(op.group == node.group and op.seq == node.seq and not op.p2p for op in state.pending)
    return not is_pending and state.enqueued(node.group) >= node.seq


def find_roots(graph: WaitGraph) -> list[list[Node]]:
    """Return the roots of the wait-for graph: the strongly connected components with no edge out of them.

    A rank that waits for another is a victim, so causes are where all paths end. Ranks that wait for each other in a
    cycle are one component, because none of them is the first to wait.
    """
    all_components = _find_components(graph.nodes(), graph.successors)
    number = {node: index for index, members in enumerate(all_components) for node in members}
    return [
        members
        for index, members in enumerate(all_components)
        if all(number[target] == index for node in members for target in graph.successors(node))
    ]


def _find_components(nodes: Iterable[Node], next_of: Callable[[Node], list[Node]]) -> list[list[Node]]:
    """Return the strongly connected components of a graph, by Tarjan's algorithm (1972).

    `next_of` returns the successors of a node. There is no recursion, because a chain of waiting ranks may include
    all ranks of the job.
    """
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    path: list[Node] = []
    on_path: set[Node] = set()
    finished: list[list[Node]] = []
    for start in nodes:
        if start in index:
            continue
        work = [(start, iter(next_of(start)))]
        index[start] = low[start] = len(index)
        path.append(start)
        on_path.add(start)
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    path.append(target)
                    on_path.add(target)
                    work.append((target, iter(next_of(target))))
                    break
                if target in on_path:
                    low[node] = min(low[node], index[target])
            else:
                # All targets are visited: a node that reaches no earlier one closes a component.
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    finished.append(_unwind(path, on_path, node))
    return finished


def _unwind(path: list[Node], on_path: set[Node], node: Node) -> list[Node]:
    """Remove the nodes from `node` to the end of `path`, which form a strongly connected component, and return them.

    This is one step of Tarjan's algorithm; `on_path` has the same nodes as `path`.
    """
    members: list[Node] = []
    while not members or members[-1] != node:
        members.append(path.pop())
    on_path.difference_update(members)
    return members[::-1]


def find_victims(graph: WaitGraph, root: Iterable[Node]) -> list[int]:
    """Return the ranks outside of a root that wait for its nodes, directly or through others, ascending.

    A root is a component of the graph from which no edge leads out.
    """
    inside = set(root)
    seen, todo = set(inside), list(inside)
    while todo:
        for node in graph.predecessors.get(todo.pop(), ()):
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return sorted(node for node in seen - inside if isinstance(node, int))


# Find the first operation that a rank never issued, if other ranks wait for it in several operations.
#
# Members of several process groups may wait for one rank at once, each in its first operation that needs this rank.
# The operation that comes first in the program was missed; the other waits are consequences. If the rank's own dump
# does not show the order, the order is taken from ranks that run the same program, here called *reference ranks*.
#
# Reference ranks share a process group with the rank, unless the group connects pipeline stages. *Similar groups*
# have the same description and size: the tp group {2, 3} is similar to {0, 1}.

_REFERENCES_ASKED = 16
"""The number of reference ranks that vote; the majority of so few is as reliable as that of thousands."""
_NOT_YET, _LONG_AGO = 1 << 62, -1
"""Positions that stand for operations which a reference has not issued yet, or which its dump no longer holds."""


def find_first_missed(job: Job, rank: int, nodes: Sequence[OpNode]) -> OpNode | None:
    """Return the operation in `nodes` that comes first in the program of `rank`, by a vote of its reference ranks.

    Reference ranks run the same program as `rank`; `nodes` are the operations in which other ranks wait for `rank`. A
    reference rank votes only if its dump shows the position of all of these operations, because an operation with an
    unknown position may be the first. The result is None if no rank votes.
    """
    votes: Counter[OpNode] = Counter()
    for reference in _find_reference_ranks(job, rank):
        order = {node: _find_position(job, rank, reference, node) for node in nodes}
        known = {node: position for node, position in order.items() if position is not None}
        # A reference rank that has issued none of the operations does not show which one comes first.
        if len(known) == len(nodes) and min(known.values()) < _NOT_YET:
            votes[min(known, key=known.__getitem__)] += 1
        if votes.total() == _REFERENCES_ASKED:
            break
    return votes.most_common(1)[0][0] if votes else None


def _find_reference_ranks(job: Job, rank: int) -> list[int]:
    """Return the ranks with a dump that share a group with `rank` and run the same program; small groups first.

    Their dumps show what `rank` should have issued. Groups of pipeline stages do not count.
    """
    shared = [number for number, group in enumerate(job.groups) if rank in group.ranks]
    shared.sort(key=lambda number: len(job.groups[number].ranks))
    members = (m for number in shared if not _carries_messages(job, number) for m in job.groups[number].ranks)
    return [m for m in dict.fromkeys(members) if m != rank and m in job.ranks]


def _carries_messages(job: Job, number: int) -> bool:
    """Return whether ranks send and receive in a group, as pipeline stages do; such members run different programs.

    `number` is an index in `Job.groups`.
    """
    states = (job.ranks[m] for m in job.groups[number].ranks[:_REFERENCES_ASKED] if m in job.ranks)
    return any(op.p2p and op.group == number for state in states for op in state.ops)


def _find_position(job: Job, rank: int, reference: int, node: OpNode) -> int | None:
    """Return the index of the operation that corresponds to `node` among those of rank `reference`; None if unknown.

    Rank `reference` runs the same program as `rank`. The result is `_NOT_YET` if rank `reference` has not issued the
    operation, and `_LONG_AGO` if its dump no longer contains it.
    """
    own = _find_similar_group(job, rank, reference, node)
    if own is None:
        return None
    ops = job.ranks[reference].ops
    if not node.is_p2p:
        same = (i for i, op in enumerate(ops) if op.group == own and op.seq == node.seq and not op.p2p)
        # Not in the dump: the reference is behind, or its ring has lost the operation.
        return next(same, _NOT_YET if node.seq > job.ranks[reference].enqueued(own) else _LONG_AGO)
    partner = job.groups[own].ranks[job.groups[node.group].ranks.index(node.sender)]
    messages = ((op, peer_of(job, op)) for op in _current_batch(job, node.sender))
    current = next((op for op, peer in messages if peer and peer.rank == rank), None)
    return _find_half_position(job, reference, partner, own, current)


def _find_similar_group(job: Job, rank: int, reference: int, node: OpNode) -> int | None:
    """Return the index of the process group of rank `reference` that corresponds to the group of `node`.

    It is the same group, or a group with the same description and size. For sends and receives, `reference` must also
    have the same position in its group as `rank` in the group of `node`. The result is None if no group corresponds, or
    several do.
    """
    ranks = job.groups[node.group].ranks
    if reference in ranks and not node.is_p2p:
        return node.group
    own = [i for i in job.ranks[reference].positions if _are_similar_groups(job, i, node.group)]
    if node.is_p2p:
        own = [i for i in own if job.groups[i].ranks.index(reference) == ranks.index(rank)]
    return own[0] if len(own) == 1 else None


def _current_batch(job: Job, rank: int) -> list[Op]:
    """Return the sends and receives that a rank launched together and waits in now; empty if it is in no operation."""
    state = job.ranks[rank]
    return find_batch(state, state.current) if state.current else []


def _are_similar_groups(job: Job, number: int, other: int) -> bool:
    """Return whether two groups, given by their indexes in `Job.groups`, have the same description and size."""
    a, b = job.groups[number], job.groups[other]
    return (a.desc, len(a.ranks)) == (b.desc, len(b.ranks))


def _find_half_position(job: Job, reference: int, partner: int, group: int, current: Op | None) -> int | None:
    """Return the index, in the operations of rank `reference`, of the send or recv that corresponds to a missing one.

    The missing operation is the counterpart of `current`: a rank (the waiter) waits in `current` for another rank (the
    absent rank), which has not issued the other half. Both belong to a similar group; here `partner` has the waiter's
    position and `reference` the absent rank's position. A send and its recv complete together, so messages between
    `reference` and `partner` are counted from the last completed pair on: the ring buffers may have lost the first
    pairs. The result is `_NOT_YET` if `reference` has not issued the operation, and None if this is not known.
    """
    match = NAME.fullmatch(job.operation(current)) if current and partner in job.ranks else None
    if current is None or match is None:
        return None
    theirs = _messages_named(job, partner, group, match[0])
    mine = _messages_named(job, reference, group, other_half_name(match))
    number = next((i for i, op in enumerate(theirs) if op.p2p_seq == current.p2p_seq), len(theirs))
    index = number - _count_done(theirs) + _count_done(mine)
    if index >= len(mine):
        return _NOT_YET
    return job.ranks[reference].ops.index(mine[index]) if index >= 0 else None


def _messages_named(job: Job, rank: int, group: int, name: str) -> list[Op]:
    return [op for op in job.ranks[rank].ops if op.p2p and op.group == group and job.operation(op) == name]


def _count_done(ops: Iterable[Op]) -> int:
    """Return how many of these operations have completed."""
    return sum(op.done for op in ops)
