"""Find out why a rank has more work than the others: which part of its own work is longer, and by how much."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import median_low
from typing import NamedTuple

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
