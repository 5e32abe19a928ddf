"""Two sets of traces: by how much a step changed, what that is made of, and which kernels and operators it is due to.

All times are a step's mean over steps and ranks, so runs of different lengths compare.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import msgspec

from analyzers import store
from analyzers.report import Evidence, Finding, Severity
from analyzers.run import Artefact
from analyzers.traces.diff.memory import MemoryChange, memory_changes
from analyzers.traces.loading import load
from analyzers.traces.structs import RankTrace, StepTime
from analyzers.words import duration_ns

WORTH, SURELY = 0.05, 0.1
"""Change of a step that is worth a finding, and that is a warning if `STEPS_AT_LEAST` steps of both tell it."""
STEPS_AT_LEAST = 3
CHANGES_AT_MOST = 30
SLIGHT = 0.02
"""Relative change of one kernel that is told."""
PARTS: dict[str, Callable[[StepTime], int]] = {
    "computing": lambda step: step.compute_ns,
    "exposed communication": lambda step: step.exposed_communication_ns,
    "exposed copies": lambda step: step.exposed_memory_ns,
    "idle between work": lambda step: step.idle_ns,
    "before and behind the work": lambda step: step.dur_ns - step.span_ns,
}
"""They add up to the step's wall time. The last is negative where work outlasts the step that launched it."""


class PartChange(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a step's wall time in both, in ns; the changes of all parts add up to that of the step."""

    what: str
    a_ns: float
    b_ns: float
    change_ns: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel, collective, operator, module or phase of which a step has more or less; `how`: appeared, vanished, more
    of them, fewer of them, slower, faster.
    """

    kind: str
    name: str
    how: str
    a_ns: float
    b_ns: float
    change_ns: float
    a_count: float
    b_count: float


class TraceDiff(msgspec.Struct, frozen=True, kw_only=True):
    """`ranks` are those of both sides that were compared; `changes` are those of most time, of each kind.

    `memory` is empty unless both recorded allocations.
    """

    ranks: list[int | None]
    a_steps: int
    b_steps: int
    step_a_ns: float
    step_b_ns: float
    parts: list[PartChange]
    changes: list[Change]
    memory: list[MemoryChange] = []


def compare(a: Sequence[Artefact], b: Sequence[Artefact], options: store.Options | None = None) -> TraceDiff | None:
    """What changed from `a` to `b`; None where no traces of both can be read."""
    sides = [[one.account for one in load(side, options or store.Options())[0]] for side in (a, b)]
    common = {one.rank for one in sides[0]} & {one.rank for one in sides[1]}
    if common:
        sides = [[one for one in side if one.rank in common] for side in sides]
    if not all(sides):
        return None
    return diff(*sides)


def diff(a: Sequence[RankTrace], b: Sequence[RankTrace]) -> TraceDiff:
    """What changed from one set of accounts to the other."""
    steps = [[step for one in side for step in steps_of(one)] for side in (a, b)]
    parts = [part(what, *(mean(map(length, side)) for side in steps)) for what, length in PARTS.items()]
    return TraceDiff(
        ranks=sorted({one.rank for one in a}, key=lambda rank: -1 if rank is None else rank),
        a_steps=len(steps[0]),
        b_steps=len(steps[1]),
        step_a_ns=mean(step.dur_ns for step in steps[0]),
        step_b_ns=mean(step.dur_ns for step in steps[1]),
        parts=parts,
        changes=[change for kind, listing in LISTINGS.items() for change in changes(kind, listing, (a, b))],
        memory=memory_changes(a, b),
    )


def steps_of(account: RankTrace) -> list[StepTime]:
    """The steps, or the whole recording as one."""
    if account.step_times:
        return account.step_times
    whole = {name: getattr(account, name, 0) for name in StepTime.__struct_fields__}
    whole |= {"name": "", "dur_ns": account.span_ns}
    return [msgspec.convert(whole, StepTime)]


def part(what: str, a: float, b: float) -> PartChange:
    return PartChange(what=what, a_ns=a, b_ns=b, change_ns=b - a)


def mean(values: Iterable[int]) -> float:
    known = list(values)
    return sum(known) / len(known) if known else 0.0


Listing = Callable[[RankTrace], Iterable[tuple[str, int, int]]]
LISTINGS: dict[str, Listing] = {
    "kernel": lambda one: [(k.name, k.total_ns, k.count) for k in one.kernels],
    "operator": lambda one: [(o.name, o.own_ns if one.device is None else o.device_ns, o.count) for o in one.operators],
    "module": lambda one: [(m.name, m.host_ns if one.device is None else m.device_ns, m.count) for m in one.modules],
    "phase": lambda one: [(p.name, p.busy_ns, p.events) for p in one.phases],
}
"""(name, ns, count) of everything of a kind in an account."""


def changes(kind: str, listing: Listing, sides: tuple[Sequence[RankTrace], Sequence[RankTrace]]) -> list[Change]:
    """What of one kind changed, that of most time first."""
    first, second = (per_step(listing, side) for side in sides)
    found = []
    for name in first | second:
        (a, a_count), (b, b_count) = first.get(name, (0.0, 0.0)), second.get(name, (0.0, 0.0))
        if abs(b - a) > SLIGHT * max(a, b):
            how = described((a, a_count), (b, b_count))
            counts = {"a_count": a_count, "b_count": b_count}
            found.append(Change(kind=kind, name=name, how=how, a_ns=a, b_ns=b, change_ns=b - a, **counts))
    return sorted(found, key=lambda one: -abs(one.change_ns))[:CHANGES_AT_MOST]


def per_step(listing: Listing, side: Sequence[RankTrace]) -> dict[str, tuple[float, float]]:
    """(ns, count) of each name in a mean step."""
    total, count = defaultdict[str, int](int), defaultdict[str, int](int)
    for account in side:
        for name, spent, times in listing(account):
            total[name] += spent
            count[name] += times
    steps = sum(len(steps_of(account)) for account in side)
    return {name: (total[name] / steps, count[name] / steps) for name in total}


def described(a: tuple[float, float], b: tuple[float, float]) -> str:
    if not a[1]:
        return "appeared"
    if not b[1]:
        return "vanished"
    if abs(b[1] - a[1]) > SLIGHT * a[1]:
        return "more of them" if b[1] > a[1] else "fewer of them"
    return "slower" if b[0] > a[0] else "faster"


def finding(found: TraceDiff) -> Finding | None:
    """In words what made the step longer; None where it did not grow by much."""
    grown = found.step_b_ns - found.step_a_ns
    if grown <= WORTH * found.step_a_ns:
        return None
    sure = grown > SURELY * found.step_a_ns and min(found.a_steps, found.b_steps) >= STEPS_AT_LEAST
    most = max(found.parts, key=lambda one: one.change_ns)
    kernels = [one for one in found.changes if one.kind == "kernel" and one.change_ns > 0]
    return Finding(
        id="compare.trace",
        severity=Severity.WARNING if sure else Severity.INFO,
        title=f"in the traces a step takes {grown / found.step_a_ns:.1%} longer, most of it {most.what}",
        why="; ".join(f"{one.what} {signed(one.change_ns)}" for one in found.parts if one.change_ns)
        + f": together {signed(grown)} a step",
        next="look at the kernels that changed; `workbench trace` on both shows the rest",
        evidence=[Evidence(text=f"{one.name[:80]}: {one.how}, {signed(one.change_ns)} a step") for one in kernels[:5]],
        confidence=0.8 if sure else 0.4,
    )


def signed(nanoseconds: float) -> str:
    return f"{'+' if nanoseconds >= 0 else '-'}{duration_ns(round(abs(nanoseconds)))}"
