"""Write the finding about a rank that the others wait for, from the numbers of `across.stragglers`."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from analyzers.report import Evidence, Finding, Severity
from analyzers.traces.across.rank_waits import RankWaits
from analyzers.traces.across.stragglers import Cause, ComputeGrowth, LateRank, Straggler
from analyzers.words import duration_change_ns, duration_ns, percent

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
