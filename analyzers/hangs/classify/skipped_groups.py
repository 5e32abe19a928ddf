"""Find ranks that did not create a process group, so that their later groups have other numbers than on other ranks.

PyTorch numbers the groups of a rank in the order of creation, and the members of a group find each other by this
number. Suppose that rank 2 of ranks 0 to 2 does not create the group {0, 1}:

    ranks 0, 1:  #1 = {0, 1}   #2 = {1, 2}
    rank 2:      #1 = {1, 2}

Rank 2 waits for rank 1 in #1, and rank 1 waits for rank 2 in #2. Rank 0, which expects rank 1 in #1, may even connect
to rank 2 there.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from analyzers.hangs.classify.cause import Cause, HangContext, RanksInOp
from analyzers.hangs.model import Culprit, HangClass, Reason
from analyzers.hangs.reading.exits import Ending, RankEnd, is_victim
from analyzers.hangs.reading.process_groups import NewGroup, NewGroups, is_making_group, read_new_groups

CONFIDENCE = 0.9
_TIE_CONFIDENCE = 0.6


@dataclass(frozen=True)
class Departure:
    """The first process-group number at which ranks differ: they created different groups, or some created none.

    `ranks` are the culprits, which created the group `issued` (None: no group). The ranks `others` created `expected`.
    `is_skipped`: the culprits left a group out. `is_tie`: the evidence does not show who is to blame, and `ranks` has
    all ranks.
    """

    ranks: list[int]
    expected: NewGroup
    others: list[int]
    issued: NewGroup | None
    is_skipped: bool
    is_tie: bool = False


def find_skipped_groups(context: HangContext) -> list[Cause]:
    """Return, in a list, a `Cause` that blames ranks which created other process groups than the rest, or too few.

    The list is empty if a rank failed by itself. It is also empty if no rank waits or timed out, because differing
    groups then did no harm.
    """
    side, world = context.side, range(context.job.world_size)
    if any(_has_failed(end) for end in context.ends()):
        return []
    if not context.graph.waits_in and not any(_is_waiting(context, rank) for rank in world):
        return []
    if side.all_ended_cleanly(context.job.world_size):
        return []
    made = {rank: read_new_groups(path) for rank, path in side.new_group_files.items()}
    departure = _find_departure(made) or _find_unmade(context, made)
    return [blame(context, departure)] if departure else []


def _has_failed(end: RankEnd) -> bool:
    """Return whether a rank ended by an error of its own.

    An abort by gloo does not count: gloo may have connected the rank to a wrong process group that has the same
    number.
    """
    return not end.is_victim and end.ending is not Ending.NO_ERROR and not end.is_size_abort


def _find_departure(made: Mapping[int, NewGroups]) -> Departure | None:
    """Return a `Departure` for the first process-group number under which ranks created different groups; else None.

    PyTorch numbers the groups of each rank in the order of creation. If a rank skips a group, all of its later groups
    have other numbers. `made` has, for each rank, the groups that it created, by number.
    """
    numbers = sorted({number for groups in made.values() for number in groups})
    for number in numbers:
        present = {rank: groups[number] for rank, groups in made.items() if number in groups}
        votes = Counter(group.members for group in present.values())
        if len(votes) > 1:
            return _departure_at(made, present, votes)
    return None


def _departure_at(
    made: Mapping[int, NewGroups], present: Mapping[int, NewGroup], votes: Counter[tuple[int, ...]]
) -> Departure:
    """Return the `Departure` for one process-group number under which ranks created different groups.

    `made` has all groups of each rank by number, `present` the group that each rank created under this number, and
    `votes` how many ranks created each of these groups. The group with most votes is right. With equal votes between
    groups A and B, A is wrong if the ranks that created B here create A under a later number: then the ranks that
    created A here have skipped B.
    """
    (usual, count), (rarer, rarer_count) = votes.most_common(2)
    is_tie = count == rarer_count
    if is_tie and _comes_later(made, present, mine=usual, other=rarer):
        usual, rarer, is_tie = rarer, usual, False
    elif is_tie and _comes_later(made, present, mine=rarer, other=usual):
        is_tie = False
    culprits = sorted(rank for rank, group in present.items() if group.members != usual)
    others = sorted(rank for rank, group in present.items() if group.members == usual)
    is_skipped = _comes_later(made, present, mine=present[culprits[0]].members, other=usual)
    return Departure(
        sorted(present) if is_tie else culprits,
        present[others[0]],
        others,
        present[culprits[0]],
        is_skipped=is_skipped,
        is_tie=is_tie,
    )


def _comes_later(
    made: Mapping[int, NewGroups], present: Mapping[int, NewGroup], mine: tuple[int, ...], other: tuple[int, ...]
) -> bool:
    """Return whether a rank that created `other` under the examined number created `mine` under a later number.

    If so, the ranks that created `mine` under the examined number have skipped a group. `mine` and `other` are the
    member ranks of two groups. `present` has the group that each rank created under the examined number, `made` all
    groups of each rank by number.
    """
    ranks = [rank for rank, group in present.items() if group.members == other]
    return any(
        later.members == mine and later.number > present[rank].number for rank in ranks for later in made[rank].values()
    )


def _find_unmade(context: HangContext, made: Mapping[int, NewGroups]) -> Departure | None:
    """Return a `Departure` that blames ranks which did not begin to create a group while other members wait in it.

    The result is None if there are no such ranks. `made` has the groups that each rank created, by number.
    """
    waiting = [rank for rank in made if _is_waiting(context, rank)]
    newest = [(max(made[rank]), rank) for rank in waiting if made[rank]]
    if not newest:
        return None
    # The lowest number: whoever waits in a later group may wait for a rank that waits in this one.
    number, rank = min(newest)
    group = made[rank][number]
    absent = [m for m in group.members if m in made and number not in made[m] and m not in waiting]
    # A rank that ended is a cause of its own.
    absent = [m for m in absent if m not in context.side.exits and context.side.end(m) is None]
    in_later = [m for m in absent if m in context.job.ranks and context.job.ranks[m].current]
    others = sorted(r for r in waiting if number in made[r])
    return Departure(absent, group, others, None, is_skipped=bool(in_later)) if absent else None


def _is_waiting(context: HangContext, rank: int) -> bool:
    """Return whether a rank waits in the creation of a process group, or has timed out there."""
    if is_making_group(context.side.main_stack(rank)):
        return True
    end = context.side.exits.get(rank)
    return bool(end and is_victim(end) and is_making_group(end.traceback))


def blame(context: HangContext, found: Departure) -> Cause:
    """Return a `Cause` for a `Departure`; it blames the ranks that created a wrong process group or none.

    All other ranks are victims, because the numbers of their later groups no longer match.
    """
    kind = HangClass.SKIPPED if found.is_skipped else HangClass.MISMATCH if found.issued else HangClass.HOST_STUCK
    frames = list(found.issued.frames) if found.issued else context.side.main_stack(found.ranks[0])
    culprit = Culprit(
        ranks=found.ranks,
        kind=kind,
        group=str(found.expected.number),
        group_desc=f"group {found.expected.number}",
        operation="new_group",
        frames=frames,
        victims=[rank for rank in range(context.job.world_size) if rank not in found.ranks],
        confidence=_TIE_CONFIDENCE if found.is_tie else CONFIDENCE,
    )
    cause = Cause(culprit, Reason.OTHER_GROUPS, expected=_as_side(found.others, found.expected))
    return replace(cause, issued=_as_side(found.ranks, found.issued)) if found.issued else cause


def _as_side(ranks: list[int], group: NewGroup) -> RanksInOp:
    """Return a `RanksInOp` for `ranks` and the process group that they created; `shape` lists the group's members."""
    members = ", ".join(map(str, group.members))
    return RanksInOp(ranks, "new_group", f"[{members}]", group.line, f"group {group.number}", group.number, p2p=False)
