"""Find the cause for each root of the wait-for graph, quickly even if thousands of ranks left no files.

A job of thousands of ranks may have left only two dumps. The time to classify every rank without files separately would
grow with the square of the number of ranks. So ranks without files form groups: in each group, the same operations wait
for the rank, and the rank belongs to the same process groups. Each group is classified once.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from analyzers.hangs.classify.cause import Cause
from analyzers.hangs.classify.context import HangContext
from analyzers.hangs.classify.root_cause import classify_root
from analyzers.hangs.graph.wait_graph import Node
from analyzers.hangs.reading.side_files import SideFiles

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
            causes.append(classify_root(context, root))
            continue
        place = places[rank]
        if place not in representatives:
            representatives[place] = classify_root(context, root)
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
