"""The rank that the others wait for, and why: which part of its own work is longer than theirs."""

import re
from collections.abc import Iterator, Sequence
from statistics import median_low

import msgspec
import numpy as np

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.across import Across, RankWaits
from analyzers.traces.answers import RankTrace
from analyzers.traces.findings import millis, percent
from analyzers.traces.matching import MEASURES

EXCESS = {"device": 0.03, "cpu": 0.2}
"""Part of the time by which a rank's own work must exceed the others'; on a CPU processes take turns on the cores."""
CAUSED, APART = 0.5, 1.5
"""Part of all waiting that is for it, and how many times the next largest excess its own is."""
HALF = 0.5
EVIDENCE_AT_MOST = 8
CAUSES = {
    "compute_ns": "compute",
    "copy_ns": "copies",
    **{name: name.removesuffix("_ns") for name in MEASURES[5:]},
}
ADVICE = {
    "compute": "Check clocks, temperature and power of rank {rank}'s device, what else runs on its host, and whether"
    " its batches are larger.",
    "data": "Look at rank {rank}'s storage and loader: more workers, prefetching, or smaller files.",
    "gc": "Collect garbage on all ranks at the same steps (gc.disable() and gc.collect() every n steps).",
    "checkpoint": "Write checkpoints asynchronously, and on all ranks alike.",
    "mixed": "Compare what rank {rank} does between collectives with another rank: its operators, its data loading,"
    " garbage collection, the load of its host.",
}
TOLD = {
    "copies": "Its memory copies take longer.",
    "gc": "It collects garbage meanwhile.",
    "data": "It waits for its input data.",
    "host": "It launches late, and no recorded operator or annotation accounts for it.",
    "mixed": "No single part of its work accounts for it.",
}
GEMM = re.compile(r"gemm|cutlass|xmma|cublas|Cijk|aten::(add)?mm|aten::bmm", re.IGNORECASE)
ANY = re.compile("")
MORE, NAME_AT_MOST = 1.02, 60


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank whose own work keeps the others waiting.

    `cause` is `compute`, `copies`, a phase of the host (`data`, `gc`, `checkpoint` ...), `host` (it launched late for
    no recorded reason) or `mixed`; `causes_ns` has what it had more of than the others; `saved_share` is the part of
    the time that the job would save without its excess; `first_*` say in which collective it came late first.
    """

    rank: int
    excess_ns: int
    excess_share: float
    saved_ns: int
    saved_share: float
    last_share: float
    caused_share: float
    cause: str
    detail: str
    causes_ns: dict[str, int]
    first_name: str
    first_group: str
    first_sequence: int | None
    first_step: int | None
    first_late_ns: int


def stragglers(joined: Sequence[Across]) -> list[Straggler]:
    """Of each set of recordings the rank with the largest excess, where that is no noise; one entry a rank."""
    found: dict[int, Straggler] = {}
    for one in joined:
        if (slow := straggler(one)) and (slow.rank not in found or slow.excess_ns > found[slow.rank].excess_ns):
            found[slow.rank] = slow
    return sorted(found.values(), key=lambda slow: -slow.excess_ns)


def straggler(one: Across) -> Straggler | None:
    place = max(range(len(one.waits)), key=lambda i: one.waits[i].excess_ns)
    row, others = one.waits[place], [wait for i, wait in enumerate(one.waits) if i != place]
    account = one.late.met.recordings[place].account
    caused, runner_up = sum(wait.caused_ns for wait in one.waits), max(wait.excess_ns for wait in others)
    # On a busy machine every rank is late now and then: a straggler causes most waiting and stands out.
    if (
        row.excess_ns < max(EXCESS[account.source] * row.window_ns, APART * runner_up)
        or row.caused_ns < CAUSED * caused
    ):
        return None
    return describe(one, place, row.caused_ns / max(1, caused))


def describe(one: Across, place: int, caused: float) -> Straggler:
    row, met, late = one.waits[place], one.late.met, one.late
    more = {name: int(values[place]) for name, values in late.excess_by_rank().items()}
    cause, causes = cause_of(more)
    mine = np.flatnonzero(met.rank == place)
    first = int(mine[np.argmax(late.excess()[mine] > HALF * late.excess()[mine].max())])
    sequence, step = (int(met.column(name)[first]) for name in ("sequence", "step"))
    return Straggler(
        rank=row.rank,
        excess_ns=row.excess_ns,
        excess_share=round(row.excess_ns / row.window_ns, 4),
        saved_ns=row.saved_ns,
        saved_share=round(row.saved_ns / row.window_ns, 4),
        last_share=round(row.last_arrivals / row.collectives, 4),
        caused_share=round(caused, 4),
        cause=cause,
        detail=detail(one, place, cause),
        causes_ns=causes,
        first_name=met.told(first, "name"),
        first_group=met.told(first, "group"),
        first_sequence=sequence if sequence >= 0 else None,
        first_step=step if step >= 0 else None,
        first_late_ns=int(late.lateness[first]),
    )


def cause_of(more: dict[str, int]) -> tuple[str, dict[str, int]]:
    """The class that covers most of the excess, and the excess of each; the rest is the host's."""
    total = more["work_ns"]
    causes = {cause: more[name] for name, cause in CAUSES.items()}
    phases = sum(max(value, 0) for cause, value in causes.items() if cause not in ("compute", "copies"))
    causes["host"] = total - max(causes["compute"], 0) - max(causes["copies"], 0) - phases
    named = max(causes, key=lambda cause: (min(causes[cause], total), cause not in ("compute", "host")))
    share = causes[named] / total
    return (named if share >= HALF else "mixed"), {cause: ns for cause, ns in causes.items() if ns > 0}


def detail(one: Across, place: int, cause: str) -> str:
    """A sentence on the cause, with numbers."""
    accounts = [recording.account for recording in one.late.met.recordings]
    mine, others = accounts[place], [account for i, account in enumerate(accounts) if i != place]
    if cause == "compute":
        return computing(mine, others)
    return TOLD.get(cause, f"It spends the time in {cause}.")


def computing(mine: RankTrace, others: Sequence[RankTrace]) -> str:
    """Whether the same kernels are slower, and by how much, or there are more of them; and which grew most."""
    products, ratio = (factor(mine, others, pattern) for pattern in (GEMM, ANY))
    events = median_low(account.device_events for account in others)
    what = "kernels" if mine.source == "device" else "operators"
    name, growth = grown(mine, others)
    most = f"most of all {name[:NAME_AT_MOST]} (+{millis(growth)})" if growth > 0 else "none of them by much"
    if mine.device_events > MORE * events:
        return f"It runs {mine.device_events} {what}, the others {events}: it has more work, {most}."
    told = f", its matrix products {percent(products - 1, 1)}" if products else ""
    return f"It runs the same {what} {percent(ratio - 1, 1)} slower{told}, {most}: a slower device or bigger inputs."


def grown(mine: RankTrace, others: Sequence[RankTrace]) -> tuple[str, int]:
    """The computing kernel whose total exceeds the median of the others by most, and by how much, in ns."""
    totals = [{k.name: k.total_ns for k in account.kernels if k.kind == "compute"} for account in [mine, *others]]
    growth = {name: own - median_low(one.get(name, 0) for one in totals[1:]) for name, own in totals[0].items()}
    return max(growth.items(), key=lambda pair: pair[1], default=("", 0))


def factor(mine: RankTrace, others: Sequence[RankTrace], pattern: re.Pattern[str]) -> float:
    """How many times as long this rank's computing kernels of a kind take as the median of the others'; 0: unknown."""

    def total(account: RankTrace) -> int:
        chosen = (k for k in account.kernels if k.kind == "compute" and pattern.search(k.name))
        return sum(kernel.total_ns for kernel in chosen)

    typical = median_low(total(account) for account in others)
    return total(mine) / typical if typical else 0.0


def straggler_findings(slow: Sequence[Straggler], rows: Sequence[RankWaits]) -> Iterator[Finding]:
    """One finding a straggler, in words."""
    for one in slow:
        where = f"{one.first_name}" + (f" #{one.first_sequence}" if one.first_sequence is not None else "")
        late = f", first by {millis(one.first_late_ns)} in {where}" if one.first_late_ns > 0 else ""
        yield Finding(
            id="trace.straggler",
            severity=Severity.WARNING,
            title=f"The others wait for rank {one.rank}",
            why=f"Between collectives rank {one.rank} has {millis(one.excess_ns)} more to do than the others{late}."
            f" {one.detail} Without that the recorded time would be {percent(one.saved_share, 1)} shorter.",
            next=ADVICE.get(one.cause, ADVICE["mixed"]).format(rank=one.rank),
            ranks=[one.rank],
            step=one.first_step,
            evidence=[
                Evidence(
                    text=f"rank {row.rank}: waits {millis(row.wait_ns)}, last in {row.last_arrivals} of"
                    f" {row.collectives}, own work {millis(abs(row.excess_ns))}"
                    f" {'more' if row.excess_ns >= 0 else 'less'} than the others"
                )
                for row in rows
            ][:EVIDENCE_AT_MOST],
            confidence=round(min(0.95, 0.5 + 0.5 * one.caused_share * min(1.0, one.excess_share / 0.1)), 2),
        )
