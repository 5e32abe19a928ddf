"""Find where the members of a group diverge: the first sequence number under which they recorded different operations.

Each rank numbers the collectives of a process group itself, so members that run the same program have the same
operation under each number. If a rank skips a collective, the numbers of all its later ones are too low by one:

    seq      5           6               7               8
    rank 0   all_reduce  broadcast       all_gather      all_reduce
    rank 1   all_reduce  all_gather      all_reduce      -

The members differ at 6. From 6 on, the operations of rank 1 equal those of rank 0 one number later, so rank 1 skipped
the broadcast (`skipped`). If no such shift explains the later operations, some ranks issued a wrong operation
(`mismatch`), and `_find_odd_variants` lists the evidence for which ranks are wrong. The different operations under one
number, each with the ranks that issued it, are called *variants*.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from analyzers.hangs.model import Frame, Job, Op, Reason, Signature, user_frame
from analyzers.hangs.reading.side_files import SideFiles
from analyzers.words import source_line

_ROOTED = ("gather", "scatter")
"""The operations in which only the root passes the list of all tensors.

So the recorded sizes differ between the ranks.
"""
_UNEVEN = ("all_to_all", "alltoall")
"""The prefixes of the names of operations in which each rank may send and receive different sizes."""
_BARRIERS = ("barrier",)

Comparable = tuple[str, object]
"""The name of an operation, and the other properties that all members must agree on."""


def comparable(signature: Signature) -> Comparable:
    """Return the part of a signature that must be equal on all members of a process group.

    For most operations this is the name, the shapes and dtypes of the tensors, and the root. If shapes may differ
    between ranks, it is less: name and dtypes for an uneven all_to_all, for example; name and root for a barrier or
    gather.
    """
    name = signature.operation
    if name in _ROOTED or name in _BARRIERS:
        return name, signature.root
    if name.startswith(_UNEVEN):
        return name, tuple(sorted(set(signature.input_dtypes)))
    tensors = (signature.input_sizes, signature.output_sizes, signature.input_dtypes, signature.output_dtypes)
    return name, (*tensors, signature.root)


def _breaks_size_rule(signature: Signature, members: int) -> bool:
    """Return whether the input and output sizes of an operation contradict each other.

    The rules: in an all_reduce or broadcast both are equal; the output of an all_gather is as large as all members'
    inputs together; the input of a reduce_scatter is as large as all outputs together. `members` is the size of the
    group.
    """
    taken, given = elements(signature.input_sizes), elements(signature.output_sizes)
    if not signature.input_sizes or not signature.output_sizes:
        return False
    match signature.operation:
        case "all_reduce" | "broadcast":
            return taken != given
        case "_all_gather_base" | "all_gather":
            return given != taken * members
        case "_reduce_scatter_base" | "reduce_scatter":
            return taken != given * members
    return False


def is_empty(signature: Signature) -> bool:
    """Return whether the input tensors have no elements."""
    return bool(signature.input_sizes) and not any(prod(shape) for shape in signature.input_sizes)


def elements(sizes: tuple[tuple[int, ...], ...]) -> int:
    """Return the total number of elements of tensors with these shapes."""
    return sum(prod(shape) for shape in sizes)


def unbalanced(job: Job, group: int, issued: Mapping[int, Op]) -> tuple[int, int] | None:
    """Return (elements sent, elements received) of an all_to_all, summed over all members; None if they are equal.

    The sizes may differ between ranks, but the two totals must be equal, or the operation cannot complete. `group` is
    an index in `Job.groups`, and `issued` maps its members to their operation. The result is also None if a member is
    missing, or if the operation is no all_to_all.
    """
    signatures = [job.signature(op) for op in issued.values()]
    if len(signatures) < len(job.groups[group].ranks) or not signatures[0].operation.startswith(_UNEVEN):
        return None
    sent, received = (
        sum(elements(sizes) for sizes in every)
        for every in ((s.input_sizes for s in signatures), (s.output_sizes for s in signatures))
    )
    return (sent, received) if sent != received else None


Key = tuple[str, object, object]
"""The name of an operation, the properties that all members must agree on, and its source line."""
Table = Mapping[int, Op]
"""The collectives that one rank issued in one process group, by sequence number."""
_LONGEST_CONTEXT = 4
"""The number of operations before the examined one that are compared to find the same point in an earlier step."""


class IssuedOp(NamedTuple):
    """One of the different operations under a sequence number; `ranks` are the ranks that issued `op` or its equal."""

    ranks: list[int]
    op: Op


@dataclass(frozen=True)
class Divergence:
    """The different operations that members of a process group issued under one sequence number.

    `group` is an index in `Job.groups`. `variants` has one item for each operation, the operation of most ranks first.
    `culprits` are the ranks that diverged (empty if this is not known), and `reason` is the evidence against them.
    `issued` is the operation of the culprits, or else of the last variant; `expected` is the operation of the others.
    `skipped` says that the culprits left an operation out. `elements` are the total numbers of elements sent and
    received in an all_to_all, if these two numbers differ.
    """

    group: int
    seq: int
    variants: list[IssuedOp]
    culprits: list[int]
    reason: Reason
    skipped: bool
    issued: Op
    expected: Op | None = None
    elements: tuple[int, int] = (0, 0)

    @property
    def members(self) -> list[int]:
        """All ranks that issued an operation under this sequence number."""
        return [m for variant in self.variants for m in variant.ranks]


def find_divergence(job: Job, group: int, last_seq: int) -> Divergence | None:
    """Return the `Divergence` at the first collective in which members of a group differ; None if there is none.

    `group` is an index in `Job.groups`; collectives up to sequence number `last_seq` are compared.
    """
    tables = {
        m: {op.seq: op for op in job.ranks[m].collectives(group)} for m in job.groups[group].ranks if m in job.ranks
    }
    tables = {m: table for m, table in tables.items() if table}
    if len(tables) < 2:
        return None
    for seq in sorted(seq for seq in set().union(*tables.values()) if seq <= last_seq):
        issued = {m: table[seq] for m, table in tables.items() if seq in table}
        if len(issued) > 1 and len({comparable(job.signature(op)) for op in issued.values()}) > 1:
            return _judge(job, group, seq, tables)
        if elements := unbalanced(job, group, issued):
            first = issued[min(issued)]
            variant = IssuedOp(sorted(issued), first)
            return Divergence(group, seq, [variant], [], Reason.UNBALANCED, False, first, elements=elements)
    return None


def _judge(job: Job, group: int, seq: int, tables: Mapping[int, Table]) -> Divergence:
    """Return the `Divergence` at sequence number `seq`: which members diverged, and whether they skipped an operation.

    `group` is the index of their process group in `Job.groups`; `tables` has the collectives of each member by
    sequence number.
    """
    issued = {m: table[seq] for m, table in tables.items() if seq in table}
    variants = _group_by_operation(job, issued)
    culprits, reason = _accuse(job, group, seq, tables, variants)
    if culprits:
        # Any member outside the culprits' variants serves: what it issued is what was expected.
        honest = next((m for variant in variants for m in variant.ranks if m not in culprits), None)
        skipped = honest is not None and all(_has_skipped(job, seq, tables[m], tables[honest]) for m in culprits)
        expected = issued[honest] if honest is not None else None
        return Divergence(group, seq, variants, culprits, reason, skipped, issued[culprits[0]], expected)
    shifted = [variant for variant in variants if _is_shifted(job, seq, tables, variant, variants)]
    if len(shifted) == 1:
        culprits = shifted[0].ranks
        expected = next(issued[m] for variant in variants for m in variant.ranks if m not in culprits)
        return Divergence(group, seq, variants, sorted(culprits), Reason.SHIFTED, True, shifted[0].op, expected)
    return Divergence(group, seq, variants, [], reason, False, variants[-1].op, variants[0].op)


def _group_by_operation(job: Job, issued: Table) -> list[IssuedOp]:
    """Return the different operations in `issued`, each with the ranks that issued it, most ranks first.

    `issued` maps each rank to its operation. Two operations count as the same if everything that members must agree on
    is equal (see `comparable`): name, shapes, dtypes and root, or fewer of these for some operations.
    """
    variants: dict[Comparable, list[int]] = {}
    for member, op in issued.items():
        variants.setdefault(comparable(job.signature(op)), []).append(member)
    by_size = sorted(variants.values(), key=lambda members: (-len(members), members))
    return [IssuedOp(members, issued[members[0]]) for members in by_size]


def _accuse(
    job: Job, group: int, seq: int, tables: Mapping[int, Table], variants: Sequence[IssuedOp]
) -> tuple[list[int], Reason]:
    """Return (culprits, evidence against them) for ranks that issued different operations under number `seq`.

    The majority is right. Without a majority, the kinds of evidence are tried from the strongest on; the first one that
    shows some of the operations to be wrong, but not all, decides. `variants` has each operation with the ranks that
    issued it, the operation of most ranks first; `tables` has the collectives of each member of `group` by sequence
    number.
    """
    # One rank errs more often than most of a group at once, so the majority is right, whichever rank is lowest.
    if len(variants[0].ranks) > len(variants[1].ranks):
        return ranks_of(variants[1:]), Reason.MAJORITY
    for reason, odd in _find_odd_variants(job, group, seq, tables, variants):
        if 0 < len(odd) < len(variants):
            return ranks_of(odd), reason
    return [], Reason.TIE


def _find_odd_variants(
    job: Job, group: int, seq: int, tables: Mapping[int, Table], variants: Sequence[IssuedOp]
) -> Iterator[tuple[Reason, list[IssuedOp]]]:
    """Yield (kind of evidence, variants that are wrong by this evidence), the strongest kind of evidence first.

    A variant is one of the different operations under number `seq`, with the ranks that issued it. `tables` has the
    collectives of each member of `group` by sequence number.
    """
    members = len(job.groups[group].ranks)
    # Yielded one by one: the last kinds search the operations of all ranks, and are rarely needed.
    yield Reason.SIZE_RULE, [variant for variant in variants if _breaks_size_rule(job.signature(variant.op), members)]
    yield Reason.EMPTY_TENSOR, [variant for variant in variants if is_empty(job.signature(variant.op))]
    yield (
        Reason.EARLIER_STEPS,
        [variant for variant in variants if _differs_from_earlier(job, seq, tables[variant.ranks[0]])],
    )
    yield Reason.SIMILAR_GROUPS, _select_unusual(job, variants, _similar_signatures(job, group, seq))
    yield (
        Reason.SAME_LINE,
        _select_unusual(job, variants, _signatures_at_line(job, group, [variant.op for variant in variants])),
    )


def _select_unusual(job: Job, variants: Sequence[IssuedOp], usual: set[Comparable]) -> list[IssuedOp]:
    """Return the variants whose operation is not in `usual`; none if `usual` is empty.

    A variant is one of the different operations under one sequence number, with the ranks that issued it.
    """
    return [variant for variant in variants if usual and comparable(job.signature(variant.op)) not in usual]


def ranks_of(variants: Iterable[IssuedOp]) -> list[int]:
    return sorted(m for variant in variants for m in variant.ranks)


def similar_groups(job: Job, group: int) -> set[int]:
    """Return the indexes of the other process groups with the same description, such as all other tp groups."""
    return {i for i, g in enumerate(job.groups) if g.desc == job.groups[group].desc and i != group}


def _similar_signatures(job: Job, group: int, seq: int) -> set[Comparable]:
    """Return the operations that similar groups issued as collective number `seq`, reduced to name, shapes and dtypes.

    Similar groups have the same description as the group with index `group`, such as all groups of the mesh dimension
    `mesh_tp`. Similar groups do the same work, so their operations show what the members of this group should have
    issued.
    """
    states = (
        (i, state) for i in similar_groups(job, group) for m in job.groups[i].ranks if (state := job.ranks.get(m))
    )
    return {comparable(job.signature(op)) for i, state in states if (op := state.collective(i, seq))}


def _signatures_at_line(job: Job, group: int, ops: Sequence[Op]) -> set[Comparable]:
    """Return the signatures (name, shapes, dtypes) of the operations that similar groups issued at the line of `ops`.

    Similar groups have the same description as the group with index `group`. The set is empty if `ops` were issued at
    different source lines.
    """
    lines = {job.line(op) for op in ops} - {None}
    if len(lines) != 1:
        return set()
    similar = similar_groups(job, group)
    issued = {(op.signature, op.stack) for state in job.ranks.values() for op in state.ops if op.group in similar}
    return {comparable(job.signatures[s]) for s, stack in issued if user_frame(job.stacks[stack]) in lines}


def key_of(job: Job, op: Op) -> Key:
    """Return a key that an operation has in every step: its name, the facts that members agree on, its source line."""
    return (*comparable(job.signature(op)), job.line(op))


def _expected_next(job: Job, seq: int, table: Table) -> Key | None:
    """Return the key of the operation that a rank should issue under number `seq`, judged by its earlier steps.

    The longest sequence of operations just before `seq` that also occurs earlier in the same dump is searched. The
    operation that followed it there is expected now. The result is None if not even the last operation occurred before.
    `table` has the rank's collectives by sequence number.
    """
    # Short contexts recur within a step, long ones only from step to step.
    for length in range(_LONGEST_CONTEXT, 0, -1):
        context = [key_of(job, table[s]) for s in range(seq - length, seq) if s in table]
        if len(context) < length:
            continue
        for earlier in range(seq - 1, min(table) + length - 1, -1):
            before = [table.get(s) for s in range(earlier - length, earlier)]
            if earlier in table and all(before) and [key_of(job, op) for op in before if op] == context:
                return key_of(job, table[earlier])
    return None


def _differs_from_earlier(job: Job, seq: int, table: Table) -> bool:
    """Return whether a rank's operation at `seq` differs from its operation at the same point of earlier steps.

    `table` has the rank's collectives by sequence number. The result is False if no earlier step shows this point.
    """
    usual = _expected_next(job, seq, table)
    return usual is not None and usual[:2] != key_of(job, table[seq])[:2]


def _is_shifted(
    job: Job, seq: int, tables: Mapping[int, Table], variant: IssuedOp, variants: Sequence[IssuedOp]
) -> bool:
    """Return whether the ranks of `variant` differ from the others because they skipped one operation.

    A variant is one of the different operations under number `seq`, with the ranks that issued it. The ranks of
    `variant` skipped an operation if their collectives, from `seq` on, equal the collectives of each other variant one
    sequence number later. `tables` has the collectives of each member by sequence number.
    """
    others = [other for other in variants if other is not variant]
    return all(_has_skipped(job, seq, tables[variant.ranks[0]], tables[other.ranks[0]]) for other in others)


def _has_skipped(job: Job, seq: int, mine: Table, theirs: Table) -> bool:
    """Return whether a rank skipped an operation that another rank issued.

    This is so if the rank's collectives (`mine`), from `seq` on, equal the other rank's collectives (`theirs`) one
    sequence number later.
    """
    # One skipped operation explains all that follows, where a mismatch would need an error in each.
    # Keys are compared without their lines, which dumps in JSON lack.
    later = [s for s in mine if s >= seq and s + 1 in theirs]
    if later:
        return all(key_of(job, mine[s])[:2] == key_of(job, theirs[s + 1])[:2] for s in later)
    # A rank in a loop of equal operations may as well have gone round once more.
    if all(n in mine and key_of(job, mine[n]) == key_of(job, mine[seq]) for n in (seq - 1, seq - 2)):
        return False
    following = _expected_next(job, seq + 1, theirs) if seq in theirs else None
    return following is not None and following[:2] == key_of(job, mine[seq])[:2]


# Find the location of each rank: the operation or function that it is in; ranks at the same line are grouped.

MOST_RANKS = 1 << 20
"""The most ranks that are listed; a damaged file may claim any world size, but no job has more."""

_NO_OPERATION = "no recorded operation"
_NO_DUMP = "no dump"


class Location(NamedTuple):
    """The ranks that are at one line. `name` is their operation or function; `line` is empty if no line is known."""

    ranks: list[int]
    name: str
    line: str


def find_locations(job: Job, side: SideFiles) -> list[Location]:
    """Return the ranks grouped by the operation or function and the line that they are in, the largest group first."""
    together: dict[tuple[str, str], list[int]] = {}
    for rank in (rank for rank in range(min(job.world_size, MOST_RANKS)) if rank not in job.unread):
        together.setdefault(_find_location(job, side, rank), []).append(rank)
    every = [Location(ranks, name, line) for (name, line), ranks in together.items()]
    return sorted(every, key=lambda location: (-len(location.ranks), location.name, location.line))


def _find_location(job: Job, side: SideFiles, rank: int) -> tuple[str, str]:
    """Return (operation or function that a rank is in, user's line), as texts; the line is empty if unknown."""
    state, stack = job.ranks.get(rank), side.main_stack(rank)
    current = state.current if state else None
    line = user_frame(stack) or (job.line(current) if current else None)
    if current:
        name = job.operation(current)
    elif line:
        name = line.name if state else _find_python_function(stack, line)
    else:
        name = _NO_OPERATION if state else _NO_DUMP
    return name, source_line(line.filename, line.line) if line else ""


def _find_python_function(stack: list[Frame], line: Frame) -> str:
    """Return the name of the innermost Python function in a stack, or else the function of the frame `line`.

    It is shown in place of the rank's operation if there is no dump.
    """
    return next((frame.name for frame in stack if frame.filename.endswith(".py")), line.name)
