"""Where the members of a group diverge: the first sequence number under which they recorded different operations.

Each rank numbers the collectives of a group itself, so members that run the same program have the same operation under
each number. A rank that leaves one out gives each later one the number before:

    seq      5           6               7               8
    rank 0   all_reduce  broadcast       all_gather      all_reduce
    rank 1   all_reduce  all_gather      all_reduce      -

At 6 the members differ. Rank 1's operations from 6 on are those of rank 0 one number later, so rank 1 skipped the
broadcast (`skipped`). Where no such shift explains what follows, one side passed a wrong operation (`mismatch`), and
`find_odd_sides` lists the evidence that decides which one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from analyzers.hangs.graph.signatures import Comparable, breaks_size_rule, comparable, is_empty, unbalanced
from analyzers.hangs.model import Job, Op, Reason, user_frame

Key = tuple[str, object, object]
"""Operation, what all members must agree on, source line."""
Table = Mapping[int, Op]
"""The collectives of a rank in a group by sequence number."""
LONGEST_CONTEXT = 4
"""How many operations before one are compared to find where the program was at the same point in an earlier step."""


class IssuedOp(NamedTuple):
    """An operation, and the ranks that issued it or an operation equal to it."""

    ranks: list[int]
    op: Op


@dataclass(frozen=True)
class Divergence:
    """The different operations that members of a process group issued under one sequence number.

    `sides` has one item for each operation, that of most ranks first. `culprits` diverged, by the evidence `reason`;
    they are empty when nothing shows which side did. `issued` is the operation of the culprits, or else of the last
    side, and `expected` that of the others. `skipped`: the culprits left an operation out. `elements` are those sent
    and received where an all_to_all is unbalanced.
    """

    group: int
    seq: int
    sides: list[IssuedOp]
    culprits: list[int]
    reason: Reason
    skipped: bool
    issued: Op
    expected: Op | None = None
    elements: tuple[int, int] = (0, 0)

    @property
    def members(self) -> list[int]:
        """All ranks that issued an operation under this sequence number."""
        return [m for side in self.sides for m in side.ranks]


def find_divergence(job: Job, group: int, last_seq: int) -> Divergence | None:
    """Return the first collective of a group, up to `last_seq`, in which members differ; None if they agree."""
    tables = {
        m: {op.seq: op for op in job.ranks[m].collectives(group)} for m in job.groups[group].ranks if m in job.ranks
    }
    tables = {m: table for m, table in tables.items() if table}
    if len(tables) < 2:
        return None
    for seq in sorted(seq for seq in set().union(*tables.values()) if seq <= last_seq):
        issued = {m: table[seq] for m, table in tables.items() if seq in table}
        if len(issued) > 1 and len({comparable(job.signature(op)) for op in issued.values()}) > 1:
            return judge(job, group, seq, tables)
        if elements := unbalanced(job, group, issued):
            first = issued[min(issued)]
            side = IssuedOp(sorted(issued), first)
            return Divergence(group, seq, [side], [], Reason.UNBALANCED, False, first, elements=elements)
    return None


def judge(job: Job, group: int, seq: int, tables: Mapping[int, Table]) -> Divergence:
    """Return which members of a group diverged at `seq`, and whether they skipped an operation.

    `tables` has the collectives of each member by sequence number.
    """
    issued = {m: table[seq] for m, table in tables.items() if seq in table}
    sides = group_by_operation(job, issued)
    culprits, reason = accuse(job, group, seq, tables, sides)
    if culprits:
        # Any member outside the culprits' sides serves: what it issued is what was expected.
        honest = next((m for side in sides for m in side.ranks if m not in culprits), None)
        skipped = honest is not None and all(has_skipped(job, seq, tables[m], tables[honest]) for m in culprits)
        expected = issued[honest] if honest is not None else None
        return Divergence(group, seq, sides, culprits, reason, skipped, issued[culprits[0]], expected)
    shifted = [side for side in sides if is_shifted(job, seq, tables, side, sides)]
    if len(shifted) == 1:
        culprits = shifted[0].ranks
        expected = next(issued[m] for side in sides for m in side.ranks if m not in culprits)
        return Divergence(group, seq, sides, sorted(culprits), Reason.SHIFTED, True, shifted[0].op, expected)
    return Divergence(group, seq, sides, [], reason, False, sides[-1].op, sides[0].op)


def group_by_operation(job: Job, issued: Table) -> list[IssuedOp]:
    """Return the members grouped by equal operations, the operation of most members first."""
    sides: dict[Comparable, list[int]] = {}
    for member, op in issued.items():
        sides.setdefault(comparable(job.signature(op)), []).append(member)
    by_size = sorted(sides.values(), key=lambda members: (-len(members), members))
    return [IssuedOp(members, issued[members[0]]) for members in by_size]


def accuse(
    job: Job, group: int, seq: int, tables: Mapping[int, Table], sides: Sequence[IssuedOp]
) -> tuple[list[int], Reason]:
    """Return the culprits, and the evidence against them.

    The majority is right; without one, the first kind of evidence that speaks against some sides and not all decides.
    """
    # One rank errs more often than most of a group at once, so the majority is right, whichever rank is lowest.
    if len(sides[0].ranks) > len(sides[1].ranks):
        return ranks_of(sides[1:]), Reason.MAJORITY
    for reason, odd in find_odd_sides(job, group, seq, tables, sides):
        if 0 < len(odd) < len(sides):
            return ranks_of(odd), reason
    return [], Reason.TIE


def find_odd_sides(
    job: Job, group: int, seq: int, tables: Mapping[int, Table], sides: Sequence[IssuedOp]
) -> Iterator[tuple[Reason, list[IssuedOp]]]:
    """Yield each kind of evidence, the strongest first, with the sides of a divergence that it speaks against."""
    members = len(job.groups[group].ranks)
    yield Reason.SIZE_RULE, [side for side in sides if breaks_size_rule(job.signature(side.op), members)]
    yield Reason.EMPTY_TENSOR, [side for side in sides if is_empty(job.signature(side.op))]
    yield Reason.EARLIER_STEPS, [side for side in sides if differs_from_earlier(job, seq, tables[side.ranks[0]])]
    yield Reason.SISTER_GROUPS, select_unusual(job, sides, sister_signatures(job, group, seq))
    yield Reason.SAME_LINE, select_unusual(job, sides, signatures_at_line(job, group, [side.op for side in sides]))


def select_unusual(job: Job, sides: Sequence[IssuedOp], usual: set[Comparable]) -> list[IssuedOp]:
    """Return the sides whose operation is not in `usual`; none where `usual` is empty."""
    return [side for side in sides if usual and comparable(job.signature(side.op)) not in usual]


def ranks_of(sides: Iterable[IssuedOp]) -> list[int]:
    """Return the ranks of all these sides of a divergence, ascending."""
    return sorted(m for side in sides for m in side.ranks)


def sister_groups(job: Job, group: int) -> set[int]:
    """Return the indexes of the other groups of the same description: all tp groups of a mesh, for example."""
    return {i for i, g in enumerate(job.groups) if g.desc == job.groups[group].desc and i != group}


def sister_signatures(job: Job, group: int, seq: int) -> set[Comparable]:
    """Return the signatures of collective number `seq` in the other groups of the same description."""
    states = ((i, state) for i in sister_groups(job, group) for m in job.groups[i].ranks if (state := job.ranks.get(m)))
    return {comparable(job.signature(op)) for i, state in states if (op := state.collective(i, seq))}


def signatures_at_line(job: Job, group: int, ops: Sequence[Op]) -> set[Comparable]:
    """Return the signatures of what the source line of `ops` issued in the other groups of the same description.

    The set is empty where the operations were issued at different lines.
    """
    lines = {job.line(op) for op in ops} - {None}
    if len(lines) != 1:
        return set()
    sisters = sister_groups(job, group)
    issued = {(op.signature, op.stack) for state in job.ranks.values() for op in state.ops if op.group in sisters}
    return {comparable(job.signatures[s]) for s, stack in issued if user_frame(job.stacks[stack]) in lines}


def key_of(job: Job, op: Op) -> Key:
    """Return a key of an operation that is the same in every step: signature and source line."""
    return (*comparable(job.signature(op)), job.line(op))


def expected_next(job: Job, seq: int, table: Table) -> Key | None:
    """Return the key of the operation that followed, in an earlier step, on those just before `seq`; None if unknown.

    The longest match of preceding operations decides. `table` has the rank's collectives by sequence number.
    """
    # Short contexts recur within a step, long ones only from step to step.
    for length in range(LONGEST_CONTEXT, 0, -1):
        context = [key_of(job, table[s]) for s in range(seq - length, seq) if s in table]
        if len(context) < length:
            continue
        for earlier in range(seq - 1, min(table) + length - 1, -1):
            before = [table.get(s) for s in range(earlier - length, earlier)]
            if earlier in table and all(before) and [key_of(job, op) for op in before if op] == context:
                return key_of(job, table[earlier])
    return None


def differs_from_earlier(job: Job, seq: int, table: Table) -> bool:
    """Return whether a rank's operation at `seq` differs from the one that it issued at this point in earlier steps."""
    usual = expected_next(job, seq, table)
    return usual is not None and usual[:2] != key_of(job, table[seq])[:2]


def is_shifted(job: Job, seq: int, tables: Mapping[int, Table], side: IssuedOp, sides: Sequence[IssuedOp]) -> bool:
    """Return whether the operations of `side` from `seq` on are those of each other side one sequence number later."""
    others = [other for other in sides if other is not side]
    return all(has_skipped(job, seq, tables[side.ranks[0]], tables[other.ranks[0]]) for other in others)


def has_skipped(job: Job, seq: int, mine: Table, theirs: Table) -> bool:
    """Return whether the operations in `mine` from `seq` on are those in `theirs` one sequence number later."""
    # One skipped operation explains all that follows, where a mismatch would need an error in each.
    # Keys are compared without their lines, which dumps in JSON lack.
    later = [s for s in mine if s >= seq and s + 1 in theirs]
    if later:
        return all(key_of(job, mine[s])[:2] == key_of(job, theirs[s + 1])[:2] for s in later)
    following = expected_next(job, seq + 1, theirs) if seq in theirs else None
    return following is not None and following[:2] == key_of(job, mine[seq])[:2]
