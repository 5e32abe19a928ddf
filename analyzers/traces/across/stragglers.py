"""The rank that the others wait for, and why: which part of its own work is longer than theirs."""

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.across.rank_waits import RankComparison, RankWaits
from analyzers.traces.across.straggler_causes import cause_of, detail
from analyzers.traces.columns.phases import HOST_PHASES
from analyzers.words import duration_ns, share

EXCESS = {"device": 0.03, "cpu": 0.2}
"""Part of the time by which a rank's own work must exceed the others'; on a CPU processes take turns on the cores."""
CAUSED, APART = 0.5, 1.5
"""Part of all waiting that is for it, and how many times the next largest excess its own is."""
OFTEN, STEPS_TELLING = 0.6, 5
"""Part of the steps in which it must be late, where there are so many steps."""
TURN_NS = {"device": 0, "cpu": 5_000_000}
"""On a CPU a process is late by that much whenever another one has a turn on its core, whoever it is."""
EVIDENCE_AT_MOST = 8
ADVICE = {
    "compute": "Check clocks, temperature and power of rank {rank}'s device, what else runs on its host, and whether"
    " its batches are larger.",
    "data": "Look at rank {rank}'s storage and loader: more workers, prefetching, or smaller files.",
    "gc": "Collect garbage on all ranks at the same steps (gc.disable() and gc.collect() every n steps).",
    "checkpoint": "Write checkpoints asynchronously, and on all ranks alike.",
    "mixed": "Compare what rank {rank} does between collectives with another rank: its operators, its data loading,"
    " garbage collection, the load of its host.",
}


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank whose own work keeps the others waiting.

    `cause` is `compute`, `copies`, a phase of the host (`data`, `gc`, `checkpoint` ...), `host` (it launched late for
    no recorded reason) or `mixed`; `causes_ns` has what it had more of than the others; `saved_share` is the part of
    the time that the job would save without its excess, which it has in `late_steps` of `steps`; `first_*` say in which
    collective it came late first.
    """

    rank: int
    excess_ns: int
    excess_share: float
    saved_ns: int
    saved_share: float
    last_share: float
    caused_share: float
    steps: int
    late_steps: int
    cause: str
    detail: str
    causes_ns: dict[str, int]
    first_name: str
    first_group: str
    first_sequence: int | None
    first_step: int | None
    first_late_ns: int


def stragglers(joined: Sequence[RankComparison]) -> list[Straggler]:
    """Of each set of recordings the rank with the largest excess, where that is no noise; one entry a rank."""
    found: dict[int, Straggler] = {}
    for one in joined:
        if (slow := straggler(one)) and (slow.rank not in found or slow.excess_ns > found[slow.rank].excess_ns):
            found[slow.rank] = slow
    return sorted(found.values(), key=lambda slow: -slow.excess_ns)


def straggler(one: RankComparison) -> Straggler | None:
    place = max(range(len(one.waits)), key=lambda i: one.waits[i].excess_ns)
    row, others = one.waits[place], [wait for i, wait in enumerate(one.waits) if i != place]
    runner_up = max(wait.excess_ns for wait in others)
    if row.excess_ns < max(EXCESS[source_of(one, place)] * row.window_ns, APART * runner_up):
        return None
    found = describe(one, place)
    return None if may_be_chance(one, place, found) else found


def source_of(one: RankComparison, place: int) -> str:
    return one.late.met.recordings[place].account.source


def may_be_chance(one: RankComparison, place: int, found: Straggler) -> bool:
    """Whether any other rank might as well have been the one: on a busy machine each is late now and then.

    What its host recorded that it did meanwhile is no chance. Of a process that just had no core, several steps tell.
    """
    if source_of(one, place) == "device" or found.steps < STEPS_TELLING or found.cause in HOST_PHASES:
        return found.caused_share < CAUSED
    return found.late_steps < OFTEN * found.steps


def describe(one: RankComparison, place: int) -> Straggler:
    row, met, late = one.waits[place], one.late.met, one.late
    by_step = late.excess_by_step()[place]
    more = {name: int(values[place]) for name, values in late.excess_by_rank().items()}
    cause, causes = cause_of(more)
    mine = np.flatnonzero(met.rank == place)
    excess = late.excess()[mine]
    first = int(mine[np.argmax(2 * excess > excess.max())])
    sequence, step = (int(met.column(name)[first]) for name in ("sequence", "step"))
    return Straggler(
        rank=row.rank,
        excess_ns=row.excess_ns,
        excess_share=round(row.excess_ns / row.window_ns, 4),
        saved_ns=row.saved_ns,
        saved_share=round(row.saved_ns / row.window_ns, 4),
        last_share=round(row.last_arrivals / row.collectives, 4),
        caused_share=round(row.caused_ns / max(1, sum(wait.caused_ns for wait in one.waits)), 4),
        steps=len(by_step),
        late_steps=int((by_step > late_from(one, place, len(by_step))).sum()),
        cause=cause,
        detail=detail(one, place, cause),
        causes_ns=causes,
        first_name=met.told(first, "name"),
        first_group=met.told(first, "group"),
        first_sequence=sequence if sequence >= 0 else None,
        first_step=step if step >= 0 else None,
        first_late_ns=int(late.lateness[first]),
    )


def late_from(one: RankComparison, place: int, steps: int) -> float:
    """The excess in ns from which on a rank counts as late in one of so many steps."""
    source = source_of(one, place)
    return max(TURN_NS[source], EXCESS[source] * one.waits[place].window_ns / max(1, steps))


def straggler_findings(slow: Sequence[Straggler], rows: Sequence[RankWaits]) -> Iterator[Finding]:
    """One finding a straggler, in words."""
    for one in slow:
        where = f"{one.first_name}" + (f" #{one.first_sequence}" if one.first_sequence is not None else "")
        late = f", first by {duration_ns(one.first_late_ns)} in {where}" if one.first_late_ns > 0 else ""
        yield Finding(
            id="trace.straggler",
            severity=Severity.WARNING,
            title=f"The others wait for rank {one.rank}",
            why=f"Between collectives rank {one.rank} has {duration_ns(one.excess_ns)} more to do than the others"
            f"{often(one)}{late}. {one.detail}"
            f" Without that the recorded time would be {share(one.saved_share, 1)} shorter.",
            next=ADVICE.get(one.cause, ADVICE["mixed"]).format(rank=one.rank),
            ranks=[one.rank],
            step=one.first_step,
            evidence=[
                Evidence(
                    text=f"rank {row.rank}: waits {duration_ns(row.wait_ns)}, last in {row.last_arrivals} of"
                    f" {row.collectives}, own work {duration_ns(abs(row.excess_ns))}"
                    f" {'more' if row.excess_ns >= 0 else 'less'} than the others"
                )
                for row in rows
            ][:EVIDENCE_AT_MOST],
            confidence=round(min(0.95, 0.5 + 0.5 * one.caused_share * min(1.0, one.excess_share / 0.1)), 2),
        )


def often(one: Straggler) -> str:
    return f" in {one.late_steps} of {one.steps} steps" if one.steps > 1 else ""
