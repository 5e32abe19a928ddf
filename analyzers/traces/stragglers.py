"""Find the rank that the others wait for, and why: which part of its own work is longer than theirs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from statistics import median_low
from typing import NamedTuple

import msgspec
import numpy as np

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.model import RankTrace
from analyzers.traces.rank_waits import RankComparison, RankWaits
from analyzers.words import duration_change_ns, duration_ns, percent

# Part of the excess that one cause must cover to be named.
CAUSE_SHARE = 0.5
# Times as many kernels as the other ranks run, from which on a rank has more work, not a slower device.
_MORE_EVENTS = 1.02
# Matrix products: kernels of cuBLAS, CUTLASS and rocBLAS (Cijk), and the operators of a CPU.
_PRODUCTS = re.compile(r"gemm|cutlass|xmma|cublas|Cijk|aten::(add)?mm|aten::bmm", re.IGNORECASE)
_ANY_NAME = re.compile("")


class Cause(StrEnum):
    """The reason why a straggler works longer than the others: the part of its work with most of the excess.

    `compute` and `copies` are work of the device. `host`: the rank launched work late for a reason that was not
    recorded. `mixed`: no part covers half of the excess. The other values are phases of the host
    (`columns.HOST_PHASES`), such as `data` (loading data), `h2d` (copying it to the device), `loss_sync`
    (reading the loss) and `gc` (garbage collection).
    """

    COMPUTE = "compute"
    COPIES = "copies"
    HOST = "host"
    MIXED = "mixed"
    ZERO_GRAD = "zero_grad"
    DATA = "data"
    H2D = "h2d"
    LOSS_SYNC = "loss_sync"
    GC = "gc"
    CHECKPOINT = "checkpoint"
    EVAL = "eval"
    LOG = "log"
    PROFILER = "profiler"

    @property
    def is_phase(self) -> bool:
        """Whether the cause is a recorded phase of the host, such as data loading."""
        return self not in _NOT_PHASES


_NOT_PHASES = {Cause.COMPUTE, Cause.COPIES, Cause.HOST, Cause.MIXED}
# The measure of `matching.MEASURES` that each cause is known by; the excess that none of them has is the host's.
_MEASURE_OF = {Cause.COMPUTE: "compute_ns", Cause.COPIES: "copy_ns"} | {
    cause: f"{cause}_ns" for cause in Cause if cause not in _NOT_PHASES
}


class ComputeGrowth(NamedTuple):
    """The difference between a rank's computing and that of the other ranks; "the others" always means their median.

    `events` is the number of the rank's kernels and copies (on a CPU, operators and collectives), `typical_events` the
    number of the others. `slowdown` is the time of its computing kernels divided by the time of the others' computing
    kernels; `product_slowdown` is the same for matrix products (0: the others have none). `kernel` is the kernel whose
    total time exceeds the others' most, and `growth_ns` is by how much (0: there is no such kernel).
    """

    on_device: bool
    events: int
    typical_events: int
    slowdown: float
    product_slowdown: float
    kernel: str
    growth_ns: int

    @property
    def has_more_work(self) -> bool:
        return self.events > _MORE_EVENTS * self.typical_events


def cause_of(excess: Mapping[str, int]) -> tuple[Cause, dict[str, int]]:
    """Return the cause that covers most of a rank's excess work, and {cause: its ns} for all that contribute.

    `excess` has the ns by which each part of the rank's work (`MEASURES`) is longer than on the other ranks. Example:
    of 80 ms excess, 70 ms are in compute and 5 ms in data; the remaining 5 ms count for the host. Compute covers more
    than half, so it is the cause.
    """
    total = excess["work_ns"]
    parts = {cause: excess[measure] for cause, measure in _MEASURE_OF.items()}
    phases = sum(max(parts[cause], 0) for cause in parts if cause.is_phase)
    parts[Cause.HOST] = total - max(parts[Cause.COMPUTE], 0) - max(parts[Cause.COPIES], 0) - phases
    # Of two that cover all of the excess a recorded phase says more than compute, which it may contain.
    named = max(parts, key=lambda cause: (min(parts[cause], total), cause not in (Cause.COMPUTE, Cause.HOST)))
    known = {cause.value: ns for cause, ns in parts.items() if ns > 0}
    return (named if parts[named] / total >= CAUSE_SHARE else Cause.MIXED), known


def _compute_growth(mine: RankTrace, others: Sequence[RankTrace]) -> ComputeGrowth:
    """Return how the computing of rank `mine` differs from that of the others: by more kernels, or by longer ones."""
    kernel, growth = _grown_most(mine, others)
    return ComputeGrowth(
        on_device=mine.source == "device",
        events=mine.device_events,
        typical_events=median_low(account.device_events for account in others),
        slowdown=slowdown(mine, others, _ANY_NAME),
        product_slowdown=slowdown(mine, others, _PRODUCTS),
        kernel=kernel,
        growth_ns=max(growth, 0),
    )


def _grown_most(mine: RankTrace, others: Sequence[RankTrace]) -> tuple[str, int]:
    """Return (name, ns) of the computing kernel that takes more time than on the other ranks by the most ns.

    The rank `mine` is compared with the lower median of the ranks `others`. The result is ("", 0) if the rank `mine`
    ran no computing kernel.
    """
    totals = [{k.name: k.total_ns for k in account.kernels if k.kind == "compute"} for account in [mine, *others]]
    growth = {name: own - median_low(other.get(name, 0) for other in totals[1:]) for name, own in totals[0].items()}
    return max(growth.items(), key=lambda pair: pair[1], default=("", 0))


def slowdown(mine: RankTrace, others: Sequence[RankTrace], pattern: re.Pattern[str]) -> float:
    """Return a rank's time in computing kernels whose name matches `pattern`, divided by that of the other ranks.

    The time of the others is their lower median. The result is 0 if they ran no such kernel.
    """

    def total(account: RankTrace) -> int:
        return sum(k.total_ns for k in account.kernels if k.kind == "compute" and pattern.search(k.name))

    typical = median_low(total(account) for account in others)
    return total(mine) / typical if typical else 0.0


# Part of the recorded time by which a rank's own work must exceed the others'. On a CPU processes take turns on the
# cores, so that healthy ranks differ by more.
_EXCESS = {"device": 0.03, "cpu": 0.2}
# How many times the next largest excess the largest must be: else several ranks are slow, or none.
_RUNNER_UP = 1.5
# Part of all waiting that must be for the rank.
_CAUSED_SHARE = 0.5
# Part of the steps in which the rank must be late, where at least so many steps were recorded.
_LATE_STEPS, STEPS_AT_LEAST = 0.6, 5
# A process is late by one time slice of the scheduler whenever another one runs on its core: on a CPU that says
# nothing about the rank.
_TIME_SLICE_NS = {"device": 0, "cpu": 5_000_000}


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank whose own work keeps the others waiting.

    The excess is how much longer than the others the rank works: `excess_ns` in total. `saved_ns` is how much shorter
    the job would be without it. `excess_share` and `saved_share` are the same relative to the time from the first work
    to the last collective. `cause` is the part of the work with most of the excess, `detail` explains it in a sentence,
    and `causes_ns` divides the excess among all causes. `more_work` is true if the rank is late in computing because it
    runs more kernels or operators than the others.

    The rank is late in `late_steps` of `steps` steps. It arrived last in the share `last_share` of its collectives, and
    `caused_share` is the share of all waiting that was for this rank. The fields that begin with `first_` describe the
    first collective in which it was clearly late: its name, process group, number in the group and step (None: not
    recorded), and by how many ns the rank was late.
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
    cause: Cause
    detail: str
    causes_ns: dict[str, int]
    first_name: str
    first_group: str
    first_sequence: int | None
    first_step: int | None
    first_late_ns: int
    more_work: bool = False


class LateRank(NamedTuple):
    """A late rank: its `Straggler` with an empty `detail`, and how its computing differs from the others'."""

    straggler: Straggler
    growth: ComputeGrowth


def late_ranks(comparisons: Sequence[RankComparison]) -> list[LateRank]:
    """Return the ranks that stand out as late in one of the comparisons; each rank once, the largest excess first.

    Each comparison is of all ranks at one part of the run. The excess of a rank is how much longer than the others it
    works. If a rank is late in several comparisons, the one with its largest excess counts.
    """
    worst: dict[int, LateRank] = {}
    for comparison in comparisons:
        late = _late_rank(comparison)
        if late is None:
            continue
        rank, excess = late.straggler.rank, late.straggler.excess_ns
        if rank not in worst or excess > worst[rank].straggler.excess_ns:
            worst[rank] = late
    return sorted(worst.values(), key=lambda late: -late.straggler.excess_ns)


def _late_rank(comparison: RankComparison) -> LateRank | None:
    """Return the rank that works longest beyond the others (the largest excess); None if it does not stand out."""
    waits = comparison.waits
    index = max(range(len(waits)), key=lambda i: waits[i].excess_ns)
    row, runner_up = waits[index], max(wait.excess_ns for i, wait in enumerate(waits) if i != index)
    if row.excess_ns < max(_EXCESS[_source_of(comparison, index)] * row.window_ns, _RUNNER_UP * runner_up):
        return None
    straggler = measured(comparison, index)
    if _may_be_chance(comparison, index, straggler):
        return None
    accounts = [recording.account for recording in comparison.lateness.matched.recordings]
    others = [account for i, account in enumerate(accounts) if i != index]
    return LateRank(straggler, _compute_growth(accounts[index], others))


def _source_of(comparison: RankComparison, index: int) -> str:
    """Return what a rank was measured on: `device`, or `cpu` if no device worked."""
    return comparison.lateness.matched.recordings[index].account.source


def _may_be_chance(comparison: RankComparison, index: int, straggler: Straggler) -> bool:
    """Return whether a rank that seems to be a straggler may be late only by chance, as happens on a busy machine.

    `index` is the index of the rank in `comparison.waits`. There are two rules. On a CPU with enough steps, a rank may
    only have waited for a core: it counts as chance unless the rank was late in most steps. In all other cases (a
    device, a recorded phase of the host as the cause, or too few steps) it counts as chance unless at least half of all
    waiting was for this rank.
    """
    evident = _source_of(comparison, index) == "device" or straggler.cause.is_phase
    if evident or straggler.steps < STEPS_AT_LEAST:
        return straggler.caused_share < _CAUSED_SHARE
    return straggler.late_steps < _LATE_STEPS * straggler.steps


def measured(comparison: RankComparison, index: int) -> Straggler:
    """Return the `Straggler` for one rank with all of its numbers filled in; its `detail` stays empty.

    `index` is the index of the rank in `comparison.waits`.
    """
    row, lateness = comparison.waits[index], comparison.lateness
    matched = lateness.matched
    by_step = lateness.excess_by_step()[index]
    cause, causes = cause_of({name: int(values[index]) for name, values in lateness.excess_by_measure().items()})
    mine = np.flatnonzero(matched.rank_index == index)
    excess = lateness.excess()[mine]
    # The first collective with at least half of the largest excess: noise comes before it.
    first = int(mine[np.argmax(2 * excess > excess.max())])
    sequence, step = (int(matched.column(name)[first]) for name in ("sequence", "step"))
    return Straggler(
        rank=row.rank,
        excess_ns=row.excess_ns,
        excess_share=round(row.excess_ns / row.window_ns, 4),
        saved_ns=row.saved_ns,
        saved_share=round(row.saved_ns / row.window_ns, 4),
        last_share=round(row.last_arrivals / row.collectives, 4),
        caused_share=round(row.caused_ns / max(1, sum(wait.caused_ns for wait in comparison.waits)), 4),
        steps=len(by_step),
        late_steps=int((by_step > _late_from_ns(comparison, index, len(by_step))).sum()),
        cause=cause,
        detail="",
        causes_ns=causes,
        first_name=matched.text(first, "name"),
        first_group=matched.text(first, "group"),
        first_sequence=sequence if sequence >= 0 else None,
        first_step=step if step >= 0 else None,
        first_late_ns=int(lateness.lateness[first]),
    )


def _late_from_ns(comparison: RankComparison, index: int, steps: int) -> float:
    source = _source_of(comparison, index)
    return max(_TIME_SLICE_NS[source], _EXCESS[source] * comparison.waits[index].window_ns / max(1, steps))


EVIDENCE_AT_MOST = 8
_NAME_AT_MOST = 60
_NOTABLE_SHARE = 0.01
"""The share of a straggler's extra time above which a part of it is named in the evidence."""
# Excess, as part of the recorded time, from which on its size takes nothing from the confidence.
_CERTAIN_EXCESS_SHARE = 0.1
# The part of a rank's work that each cause stands for, as a noun; a mix has none.
PART_NAMES = {
    Cause.COMPUTE: "compute",
    Cause.COPIES: "memory copies",
    Cause.HOST: "host code that no operator or annotation covers",
    Cause.ZERO_GRAD: "resetting gradients",
    Cause.DATA: "data loading",
    Cause.H2D: "copying batches to the device",
    Cause.LOSS_SYNC: "reading metrics back from the device",
    Cause.GC: "garbage collection",
    Cause.CHECKPOINT: "writing checkpoints",
    Cause.EVAL: "evaluation",
    Cause.LOG: "logging",
    Cause.PROFILER: "the profiler or the memory recorder",
}
# What each cause but compute means; compute has numbers of its own (`computing`).
REASONS = {
    Cause.COPIES: "Its memory copies take longer.",
    Cause.HOST: "It arrives late, and no recorded operator or annotation explains why.",
    Cause.MIXED: "No single part of its work explains half of the extra time.",
    Cause.ZERO_GRAD: "In the extra time it resets gradients (zero_grad).",
    Cause.DATA: "In the extra time it waits for its data loader.",
    Cause.H2D: "In the extra time it copies batches to its device.",
    Cause.LOSS_SYNC: "In the extra time it reads the loss and other metrics back from its device.",
    Cause.GC: "In the extra time it runs Python's garbage collector.",
    Cause.CHECKPOINT: "In the extra time it writes a checkpoint.",
    Cause.EVAL: "In the extra time it evaluates the model.",
    Cause.LOG: "In the extra time it writes logs.",
    Cause.PROFILER: "In the extra time its profiler or memory recorder is at work.",
}
# What to try for each cause; the causes without a line of their own take that of `MIXED`.
ADVICE = {
    Cause.COMPUTE: "Check clock rate, temperature and power of rank {rank}'s device (nvidia-smi -q -d"
    " CLOCK,TEMPERATURE,POWER), what else runs on its host, and whether its batches are larger.",
    Cause.COPIES: "Pin the host memory of rank {rank} (DataLoader(pin_memory=True)), and check that its process runs on"
    " the CPU socket of its device.",
    Cause.DATA: "Find out why loading is slow on rank {rank} only: its storage, the CPUs of its host, its part of"
    " the data. More workers (num_workers) or a higher prefetch_factor can hide it.",
    Cause.GC: "Collect garbage on all ranks at the same steps: call gc.disable() once, and gc.collect() every N steps"
    " (torchtitan: training.gc_freq).",
    Cause.CHECKPOINT: "Write checkpoints asynchronously (torchtitan: checkpoint.async_mode), on all ranks at the same"
    " steps.",
    Cause.MIXED: "Compare what rank {rank} does outside of collectives with a rank that is not late: operators, data"
    " loading, garbage collection, and what else runs on its machine.",
}
_MORE_WORK = (
    "Find what rank {rank} computes that the others do not: compare the shapes of its batches, and look for code that"
    " depends on the rank."
)


def with_detail(late: LateRank) -> Straggler:
    """Return the straggler with a sentence on its cause in `detail`, and with `more_work` filled in."""
    cause = late.straggler.cause
    if cause is not Cause.COMPUTE:
        return msgspec.structs.replace(late.straggler, detail=REASONS[cause])
    return msgspec.structs.replace(late.straggler, detail=computing(late.growth), more_work=late.growth.has_more_work)


def computing(growth: ComputeGrowth) -> str:
    unit = "kernels" if growth.on_device else "operators"
    kernel = growth.kernel[:_NAME_AT_MOST]
    most = f" Most of the extra time is in {kernel} (+{duration_ns(growth.growth_ns)})." if growth.growth_ns else ""
    if growth.has_more_work:
        return f"It has more work: it runs {growth.events} {unit}, the other ranks run {growth.typical_events}.{most}"
    more = percent(growth.product_slowdown - 1) if growth.product_slowdown else ""
    products = f" (matrix products: {more} longer)" if more else ""
    slower = f"the same {unit} take {percent(growth.slowdown - 1)} longer than on the other ranks{products}"
    return f"Its device is slower, or its inputs are larger: {slower}.{most}"


def straggler_findings(
    stragglers: Sequence[Straggler], waits: Sequence[RankWaits], sources: Mapping[int, str]
) -> Iterator[Finding]:
    """Yield a finding for each straggler.

    The evidence comes from `waits`, which has the waiting of each rank; `sources` has the path of each rank's trace.
    """
    for straggler in stragglers:
        yield Finding(
            id="trace.straggler",
            severity=Severity.WARNING,
            title=f"Rank {straggler.rank} is the straggler: outside of collectives it needs"
            f" {duration_ns(straggler.excess_ns)} more than {_the_others(straggler.rank, waits)}{mostly(straggler)}",
            why=reason(straggler),
            next=advice(straggler).format(rank=straggler.rank),
            ranks=[straggler.rank],
            step=straggler.first_step,
            evidence=evidence(straggler, waits, sources),
            confidence=confidence(straggler),
        )


def advice(straggler: Straggler) -> str:
    """Return what to do about a straggler, with `{rank}` where the number of the rank belongs."""
    return _MORE_WORK if straggler.more_work else ADVICE.get(straggler.cause, ADVICE[Cause.MIXED])


def _the_others(rank: int, waits: Sequence[RankWaits]) -> str:
    others = [row.rank for row in waits if row.rank != rank]
    return f"rank {others[0]}" if len(others) == 1 else "the median of the other ranks"


def mostly(straggler: Straggler) -> str:
    """Return a clause on the main part of the excess, such as `, mostly for data loading`; empty if there is none."""
    known = straggler.cause in PART_NAMES and straggler.causes_ns.get(straggler.cause, 0)
    return f", mostly for {PART_NAMES[straggler.cause]}" if known else ""


def evidence(straggler: Straggler, waits: Sequence[RankWaits], sources: Mapping[int, str]) -> list[Evidence]:
    """Return evidence on the parts of the straggler's excess, then on each rank's waiting, the straggler first.

    `waits` has the waiting of each rank, `sources` the path of each rank's trace.
    """
    parts = sorted(straggler.causes_ns.items(), key=lambda part: -part[1])
    listed = [(PART_NAMES[Cause(name)], ns) for name, ns in parts if Cause(name) in PART_NAMES]
    rest = straggler.excess_ns - sum(ns for _, ns in listed)
    # Parts that are less than a hundredth of the excess are noise, such as +191 ns.
    notable = _NOTABLE_SHARE * abs(straggler.excess_ns)
    named = [
        f"{name} {duration_change_ns(ns)}" for name, ns in [*listed, ("everything else", rest)] if abs(ns) > notable
    ]
    compared = f"rank {straggler.rank} compared with {_the_others(straggler.rank, waits)}, over the whole profile"
    text = f"{compared}: {duration_change_ns(straggler.excess_ns)} outside of collectives, of which {', '.join(named)}"
    facts = [Evidence(text=text, source=sources.get(straggler.rank, ""))] if listed else []
    rows = sorted(waits, key=lambda row: row.rank != straggler.rank)
    facts += [Evidence(text=waiting(row), source=sources.get(row.rank, "")) for row in rows]
    return facts[:EVIDENCE_AT_MOST]


def reason(straggler: Straggler) -> str:
    """Return sentences on why the rank is late, since which collective, in how many steps, and how much that costs."""
    steps = f" in {straggler.late_steps} of {straggler.steps} steps" if straggler.steps > 1 else ""
    number = f" #{straggler.first_sequence}" if straggler.first_sequence is not None else ""
    first = (
        f" It first arrives late at {straggler.first_name}{number}, {duration_ns(straggler.first_late_ns)} after the"
        " other ranks."
        if straggler.first_late_ns > 0
        else ""
    )
    return (
        f"{straggler.detail}{first} The other ranks wait for it in collectives{steps}:"
        f" {percent(straggler.caused_share)} of the time that all ranks wait in collectives is for rank"
        f" {straggler.rank}. Without this delay the recorded time would be"
        f" {percent(straggler.saved_share)} shorter."
    )


def waiting(row: RankWaits) -> str:
    return (
        f"rank {row.rank} waits {duration_ns(row.wait_ns)} for other ranks in {row.collectives} collectives; the other"
        f" ranks together wait {duration_ns(row.caused_ns)} for it"
    )


def confidence(straggler: Straggler) -> float:
    """Return the confidence that a rank is the straggler, from 0.5 to 0.95.

    It is higher if the waiting is mostly for this rank and its excess is large.
    """
    size = min(1.0, straggler.excess_share / _CERTAIN_EXCESS_SHARE)
    return round(min(0.95, 0.5 + 0.5 * straggler.caused_share * size), 2)
