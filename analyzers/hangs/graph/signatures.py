"""Compares what the members of a group recorded under one sequence number: mismatches and skipped operations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from operator import attrgetter

from analyzers.hangs.model import Job, Op, Signature, user_frame

ROOTED = ("gather", "scatter")
UNEVEN = ("all_to_all", "alltoall")
BARRIERS = ("barrier",)

INPUTS, OUTPUTS = attrgetter("input_sizes"), attrgetter("output_sizes")

Key = tuple[str, object, object]
"""Operation, what all members must agree on, source line."""


@dataclass(frozen=True)
class Divergence:
    """Where members of a group part. `ranks` departed; empty when nothing tells which side did."""

    group: int
    seq: int
    ranks: list[int]
    sides: list[list[int]]
    skipped: bool
    why: str
    op: Op | None
    """What the culprits, or else the first rank, issued."""
    expected: Op | None = None
    """What the others issued."""


def comparable(signature: Signature) -> tuple[str, object]:
    """What all members of a group must agree on."""
    name = signature.operation
    if name in ROOTED or name in BARRIERS:
        return name, None
    if name.startswith(UNEVEN):
        return name, tuple(sorted(set(signature.input_dtypes)))
    return name, (signature.input_sizes, signature.output_sizes, signature.input_dtypes, signature.output_dtypes)


def breaks_own_rule(signature: Signature, members: int) -> bool:
    """Whether input and output sizes contradict each other, whatever the others issued."""
    taken, given = (sum(prod(shape) for shape in sizes) for sizes in (signature.input_sizes, signature.output_sizes))
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


def first_divergence(job: Job, group: int, upto: int) -> Divergence | None:
    """The earliest collective at or before `upto` whose members disagree."""
    tables = {m: {op.seq: op for op in job.ranks[m].in_group(group)} for m in job.groups[group].ranks if m in job.ranks}
    tables = {m: table for m, table in tables.items() if table}
    if len(tables) < 2:
        return None
    for seq in sorted(set().union(*tables.values())):
        here = {m: table[seq] for m, table in tables.items() if seq in table}
        if seq <= upto and len(here) > 1 and len({comparable(job.signature(op)) for op in here.values()}) > 1:
            return judge(job, group, seq, tables)
        if seq <= upto and (why := unbalanced(job, group, here)):
            first = here[min(here)]
            return Divergence(group, seq, [], [sorted(here)], skipped=False, why=why, op=first)
    return None


def unbalanced(job: Job, group: int, here: Mapping[int, Op]) -> str:
    """Why an all_to_all of all members cannot complete: sizes may be uneven, but what is sent must be received."""
    issued = [job.signature(op) for op in here.values()]
    if len(issued) < len(job.groups[group].ranks) or not issued[0].operation.startswith(UNEVEN):
        return ""
    sent, received = (
        sum(prod(shape) for signature in issued for shape in sizes(signature)) for sizes in (INPUTS, OUTPUTS)
    )
    return f"together they send {sent} elements and receive {received}" if sent != received else ""


def judge(job: Job, group: int, seq: int, tables: Mapping[int, Mapping[int, Op]]) -> Divergence:
    """Which members departed at `seq`, and whether they skipped an operation."""
    here = {m: table[seq] for m, table in tables.items() if seq in table}
    sides = sides_of(job, here)
    culprits, why = departed(job, group, seq, tables, sides)
    honest = [m for side in sides for m in side if m not in culprits]
    accused = culprits or sides[-1]
    skipped = bool(culprits) and all(has_skipped(job, seq, tables[m], tables[honest[0]]) for m in culprits)
    if (
        not culprits
        and (runaway := [s for s in sides if skips_against(job, seq, tables, s, sides)])
        and len(runaway) == 1
    ):
        culprits = accused = runaway[0]
        honest = [m for side in sides for m in side if m not in culprits]
        skipped, why = True, "its operations are those of the others one number later"
    return Divergence(
        group, seq, sorted(culprits), sides, skipped, why, here[accused[0]], here[honest[0]] if honest else None
    )


def skips_against(
    job: Job, seq: int, tables: Mapping[int, Mapping[int, Op]], side: list[int], sides: list[list[int]]
) -> bool:
    return all(has_skipped(job, seq, tables[side[0]], tables[other[0]]) for other in sides if other is not side)


def sides_of(job: Job, here: Mapping[int, Op]) -> list[list[int]]:
    """Members by what they issued, the largest side first."""
    sides: dict[tuple[str, object], list[int]] = {}
    for member, op in here.items():
        sides.setdefault(comparable(job.signature(op)), []).append(member)
    return sorted(sides.values(), key=lambda side: (-len(side), side))


def departed(
    job: Job, group: int, seq: int, tables: Mapping[int, Mapping[int, Op]], sides: Sequence[list[int]]
) -> tuple[list[int], str]:
    """The culprits and the evidence against them; the first kind of evidence that tells sides apart decides."""
    # One rank errs more often than most of a group at once, so the majority is right, whichever rank is lowest.
    if len(sides[0]) > len(sides[1]):
        return sorted(m for side in sides[1:] for m in side), f"{len(sides[0])} of the others issued the same"
    members = len(job.groups[group].ranks)
    issued = {side[0]: job.signature(tables[side[0]][seq]) for side in sides}

    def unlike(usual: set[tuple[str, object]]) -> Callable[[int], bool]:
        return lambda m: bool(usual) and comparable(issued[m]) not in usual

    tests: tuple[tuple[str, Callable[[], Callable[[int], bool]]], ...] = (
        ("its sizes break the operation's own rule", lambda: lambda m: breaks_own_rule(issued[m], members)),
        ("its tensor is empty", lambda: lambda m: is_empty(issued[m])),
        ("it departs from its own earlier steps", lambda: lambda m: against_habit(job, seq, tables[m])),
        ("sister groups issued what the others did", lambda: unlike(sister_signatures(job, group, seq))),
        ("elsewhere this line issued what the others did", lambda: unlike(at_the_same_line(job, group, seq, tables))),
    )
    for why, test in tests:
        is_odd = test()
        odd = [side for side in sides if is_odd(side[0])]
        if 0 < len(odd) < len(sides):
            return sorted(m for side in odd for m in side), why
    return [], "the sides are equally large"


def is_empty(signature: Signature) -> bool:
    return bool(signature.input_sizes) and not any(prod(shape) for shape in signature.input_sizes)


def sister_signatures(job: Job, group: int, seq: int) -> set[tuple[str, object]]:
    """What groups of the same description recorded under the same number."""
    desc = job.groups[group].desc
    sisters = [i for i, g in enumerate(job.groups) if g.desc == desc and i != group]
    ops = (state.at(i, seq) for i in sisters for m in job.groups[i].ranks if (state := job.ranks.get(m)))
    return {comparable(job.signature(op)) for op in ops if op}


def at_the_same_line(job: Job, group: int, seq: int, tables: Mapping[int, Mapping[int, Op]]) -> set[tuple[str, object]]:
    """What the line that issued an operation issued on ranks of other groups of the same description."""
    lines = {job.line(table[seq]) for table in tables.values() if seq in table} - {None}
    if len(lines) != 1:
        return set()
    alike = {i for i, g in enumerate(job.groups) if g.desc == job.groups[group].desc and i != group}
    issued = {(op.signature, op.stack) for state in job.ranks.values() for op in state.ops if op.group in alike}
    return {comparable(job.signatures[s]) for s, stack in issued if user_frame(job.stacks[stack]) in lines}


def key(job: Job, op: Op) -> Key:
    return (*comparable(job.signature(op)), job.line(op))


def expected_next(job: Job, seq: int, table: Mapping[int, Op]) -> Key | None:
    """What followed in earlier steps when the operations before `seq` were the same; the longest memory decides."""
    for memory in (4, 3, 2, 1):
        context = [key(job, table[s]) for s in range(seq - memory, seq) if s in table]
        if len(context) < memory:
            continue
        for earlier in range(seq - 1, min(table) + memory - 1, -1):
            before = [table.get(s) for s in range(earlier - memory, earlier)]
            if earlier in table and all(before) and [key(job, op) for op in before if op] == context:
                return key(job, table[earlier])
    return None


def against_habit(job: Job, seq: int, table: Mapping[int, Op]) -> bool:
    """Whether a rank's operation is not the one that it used to issue here."""
    usual = expected_next(job, seq, table)
    return usual is not None and usual[:2] != key(job, table[seq])[:2]


def has_skipped(job: Job, seq: int, mine: Mapping[int, Op], theirs: Mapping[int, Op]) -> bool:
    """Whether my operations from `seq` on are theirs one number later."""
    # Who leaves one operation out gives each later one the number before: one shift explains all that follows, where
    # a mismatch would need an error in each.
    later = [s for s in mine if s >= seq and s + 1 in theirs]
    if later:
        return all(key(job, mine[s])[:2] == key(job, theirs[s + 1])[:2] for s in later)
    follows = expected_next(job, seq + 1, theirs) if seq in theirs else None
    return follows is not None and follows[:2] == key(job, mine[seq])[:2]
