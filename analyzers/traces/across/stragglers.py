"""Find the rank that the others wait for, and why: which part of its own work is longer than theirs."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import median_low
from typing import NamedTuple

import msgspec
import numpy as np

from analyzers.traces.across.rank_waits import RankComparison
from analyzers.traces.model import RankTrace

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
    (`columns.phases.HOST_PHASES`), such as `data` (loading data), `h2d` (copying it to the device), `loss_sync`
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


def compute_growth(mine: RankTrace, others: Sequence[RankTrace]) -> ComputeGrowth:
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
    return LateRank(straggler, compute_growth(accounts[index], others))


def _source_of(comparison: RankComparison, index: int) -> str:
    """Return what a rank was measured on: `device`, or `cpu` if no device worked.

    `index` is the index of the rank in `comparison.waits`.
    """
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
    """Return the excess in ns above which a rank counts as late in a single step.

    `index` is the index of the rank in `comparison.waits`, `steps` the number of recorded steps. On a CPU the result
    is at least a time slice of the scheduler.
    """
    source = _source_of(comparison, index)
    return max(_TIME_SLICE_NS[source], _EXCESS[source] * comparison.waits[index].window_ns / max(1, steps))
