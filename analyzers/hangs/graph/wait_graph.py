"""Who waits for whom. Nodes are ranks and operations: a rank points at the operation it stands in, an operation at the
ranks that have not come to it. The causes are the strongly connected components without a way out.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from analyzers.hangs.model import Job, Op, RankState
from analyzers.hangs.reading.p2p import absent_peers
from analyzers.hangs.reading.side_files import Side


class At(NamedTuple):
    """An operation as a place to stand: `sender` is the rank itself for point-to-point, else -1."""

    group: int
    seq: int
    sender: int = -1


Node = int | At


@dataclass
class Graph:
    """`stands` maps a rank to its operation, `absent` an operation to the ranks it lacks."""

    stands: dict[int, At] = field(default_factory=dict)
    absent: dict[At, list[int]] = field(default_factory=dict)
    soft: set[At] = field(default_factory=set)
    """Operations that prove nothing: too young, compared with the dumps' instants, or not the first ones pending."""

    def next(self, node: Node) -> list[Node]:
        if isinstance(node, At):
            return list(self.absent[node])
        return [self.stands[node]] if node in self.stands else []

    def nodes(self) -> list[Node]:
        missing = {rank for ranks in self.absent.values() for rank in ranks}
        return [*sorted(missing | set(self.stands)), *self.absent]

    def arrived(self, at: At) -> list[int]:
        """The ranks that stand in an operation."""
        return sorted(rank for rank, place in self.stands.items() if place == at)

    def waiters(self, rank: int) -> list[At]:
        """The operations that wait for a rank."""
        return [at for at, ranks in self.absent.items() if rank in ranks]


def build(job: Job, side: Side) -> Graph:
    """The graph of all ranks that left a dump. One that died stands nowhere, whatever it had issued before."""
    graph = Graph()
    standing: dict[At, list[Op]] = defaultdict(list)
    ends = {rank: death for rank in range(job.world_size) if (death := side.death(rank))}
    dead = {rank for rank, death in ends.items() if not death.victim}
    for rank, state in job.ranks.items():
        if (front := state.front) and rank not in dead:
            at = At(front.group, front.p2p_seq, rank) if front.p2p else At(front.group, front.seq)
            graph.stands[rank] = at
            standing[at].append(front)
    outdated = looked_at_early(job)
    for at, ops in standing.items():
        lacking = absent_peers(job, ops[0]) if at.sender >= 0 else absent_members(job, at, dead)
        since = min(op.created_ns for op in ops)
        silent = {rank for rank in ends if rank not in dead and rank not in job.ranks}
        proven = [
            m
            for m in lacking
            if m not in silent
            and m not in outdated
            and not looked_at_before(side.looked_ns(m) or job.taken.get(m), since)
        ]
        graph.absent[at] = proven
        if len(proven) < len(lacking) or any(job.ranks[op.rank].overwritten for op in ops):
            graph.soft.add(at)
    return graph


def looked_at_early(job: Job) -> set[int]:
    """The ranks that issued more after their dumps: others report completed what theirs do not hold yet.

    One rank alone is rather odd than early. Only NCCL's word counts: gloo flags what has failed as done.
    """
    if any(signature.backend == "gloo" for signature in job.signatures):
        return set()
    furthest: dict[int, int] = defaultdict(lambda: -1)
    for state in job.ranks.values():
        for group, position in state.positions.items():
            furthest[group] = max(furthest[group], position.completed)
    behind = {
        rank
        for rank, state in job.ranks.items()
        if any(-1 < position.enqueued < furthest[group] for group, position in state.positions.items())
    }
    return behind if len(behind) > max(1, len(job.ranks) // 8) else set()


def looked_at_before(asked_ns: int | None, since_ns: int) -> bool:
    """A dump taken before an operation began says nothing about that operation."""
    return asked_ns is not None and since_ns > asked_ns


def absent_members(job: Job, at: At, dead: set[int]) -> list[int]:
    """The members of a group that have not come to a collective, or died in it."""
    members = job.groups[at.group].ranks
    return [
        m
        for m in members
        if not has_come(job.ranks.get(m), at) or (m in dead and job.ranks[m].completed(at.group) < at.seq)
    ]


def has_come(state: RankState | None, at: At) -> bool:
    """Whether a rank stands in the operation or is past it."""
    if state is None:
        return False
    front = state.front
    if front and not front.p2p and (front.group, front.seq) == (at.group, at.seq):
        return True
    waiting = any(op.group == at.group and op.seq == at.seq and not op.p2p for op in state.pending)
    return not waiting and state.enqueued(at.group) >= at.seq


def roots(graph: Graph) -> list[list[Node]]:
    """Components nobody leads out of, to which someone leads or in which someone stands.

    Whoever waits for somebody is a victim of that one, so only where all ways end can a cause be; a ring of waiting
    ranks is one component, as none of them comes before the others.
    """
    found = components(graph.nodes(), graph.next)
    home = {node: index for index, members in enumerate(found) for node in members}
    return [
        members
        for index, members in enumerate(found)
        if all(home[target] == index for node in members for target in graph.next(node))
    ]


def components(nodes: Iterable[Node], next_of: Callable[[Node], list[Node]]) -> list[list[Node]]:
    """Tarjan's strongly connected components, without recursion: chains are as long as there are ranks."""
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    path: list[Node] = []
    on_path: set[Node] = set()
    found: list[list[Node]] = []
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
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    found.append(unwind(path, on_path, node))
    return found


def unwind(path: list[Node], on_path: set[Node], node: Node) -> list[Node]:
    """Take a finished component off the path."""
    start = path.index(node)
    members = path[start:]
    del path[start:]
    on_path.difference_update(members)
    return members


def victims(graph: Graph, root: Iterable[Node]) -> list[int]:
    """The ranks outside of a root that wait for it, directly or through others."""
    backwards = reverse(graph)
    inside = set(root)
    seen, todo = set(inside), list(inside)
    while todo:
        for node in backwards.get(todo.pop(), ()):
            if node not in seen:
                seen.add(node)
                todo.append(node)
    return sorted(node for node in seen - inside if isinstance(node, int))


def reverse(graph: Graph) -> Mapping[Node, list[Node]]:
    backwards: dict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes():
        for target in graph.next(node):
            backwards[target].append(node)
    return backwards
