"""Write the findings on ranks that make the others wait."""

import math
from collections.abc import Sequence

from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding, Severity
from analyzers.steps.answers.lateness import PHASES_OF
from analyzers.steps.findings.common import CAUSE_NAMES, because_of, confidence, log_of_rank
from analyzers.steps.model import Cause, Pattern, Problem, Straggler
from analyzers.steps.table import Steps
from analyzers.words import agree, duration, percent, quantity, rank_names

_SHARED_PATTERNS = (Pattern.ROTATING, Pattern.HOST)
"""The patterns of lateness for which several ranks share one finding."""


def straggler_findings(steps: Steps, stragglers: Sequence[Straggler]) -> list[Finding]:
    """Return the findings on stragglers: one finding for each, or one for several that belong together.

    Two kinds belong together: the ranks of one machine that are all late, and ranks that are late in turns.
    """
    groups: dict[str, list[Straggler]] = {}
    for straggler in stragglers:
        # 512 ranks in turns are one finding, not 512.
        shared = straggler.pattern in _SHARED_PATTERNS
        groups.setdefault(straggler.pattern if shared else f"rank {straggler.rank}", []).append(straggler)
    return [_straggler_finding(steps, group) for group in groups.values()]


def _straggler_finding(steps: Steps, group: Sequence[Straggler]) -> Finding:
    """Return one finding on the stragglers in `group`, the costliest of which comes first."""
    ranks, first = sorted(straggler.rank for straggler in group), group[0]
    begin = min(straggler.first_step for straggler in group)
    compared = quantity(compared_steps(first), "step")
    lateness = f"late in {first.steps_late} of {compared}, by {duration(first.lateness_s)} on average"
    lost, share = sum(s.lost_s for s in group), sum(s.share for s in group)
    return Finding(
        id=Problem.STRAGGLER.finding_id,
        severity=Severity.WARNING,
        title=f"{waiting_text(steps, first, ranks)} from step {begin} on: {lateness}; {_extra_time(group)}",
        why=f"in each step all ranks wait for the slowest one. On average over the {compared} this makes a step"
        f" {duration(lost)} longer: {percent(share)} of all step time is spent waiting for"
        f" {'it' if len(ranks) == 1 else 'them'}",
        next=_NEXT_BY_PATTERN.get(first.pattern) or _NEXT_BY_CAUSE[first.cause],
        ranks=ranks,
        step=begin,
        evidence=evidence(steps, group)[:EVIDENCE_AT_MOST],
        confidence=confidence(steps),
    )


def _extra_time(group: Sequence[Straggler]) -> str:
    """Return a clause on what the stragglers do in the additional time: `the extra time is data loading`."""
    known = sorted({CAUSE_NAMES[straggler.cause] for straggler in group if straggler.cause is not Cause.MIXED})
    return f"the extra time is {' and '.join(known)}" if known else "the extra time has no single cause"


def waiting_text(steps: Steps, first: Straggler, ranks: Sequence[int]) -> str:
    """Return a clause such as `rank 3 makes the others wait in some steps`; its end depends on the pattern of lateness.

    `first` is the costliest of the stragglers in the finding, `ranks` are the ranks of all of them.
    """
    host = next((start.host for start in steps.starts if start.rank == first.rank), "")
    whole_host = f" (all of host {host})" if first.pattern is Pattern.HOST else ""
    when = {Pattern.RECURRING: " in some steps", Pattern.ROTATING: " in turns"}.get(first.pattern, "")
    return f"{rank_names(ranks)}{whole_host} {agree(ranks, 'makes', 'make')} the others wait{when}"


def compared_steps(straggler: Straggler) -> int:
    """Return the number of steps in which a straggler was compared with the other ranks: all but warm-up steps."""
    return round(straggler.steps_late / straggler.recurrence)


def evidence(steps: Steps, group: Sequence[Straggler]) -> list[Evidence]:
    """Return evidence on how late each straggler in `group` is.

    If there is only one, the evidence also has the measured times: of the steps, of its latest steps, and of the
    phases that make it late, compared with the other ranks.
    """
    late = [_lateness_fact(steps, straggler) for straggler in group]
    first = group[0]
    return [*late, *_step_facts(steps, first), *_phase_facts(steps, first)] if len(group) == 1 else late


def _step_facts(steps: Steps, straggler: Straggler) -> list[Evidence]:
    """Return, as evidence, how long steps take with and without the lateness of a rank, and its latest steps.

    The comparison of steps is left out if the difference is small, because waiting for a rank may also show in the next
    step.
    """
    late_s, other_s = straggler.late_step_s, straggler.other_step_s
    facts = []
    if other_s is not None and late_s - other_s >= straggler.lateness_s / 2:
        facts.append(
            f"a step in which rank {straggler.rank} is late takes {duration(late_s)}, one in which it is not late"
            f" {duration(other_s)} (medians)"
        )
    latest = ", ".join(
        f"step {late.step}, late by {duration(late.lateness_s)} (the step took {duration(late.step_s)})"
        for late in straggler.latest
    )
    facts.append(f"the steps in which rank {straggler.rank} is latest: {latest}")
    return [Evidence(text=fact, source=log_of_rank(steps, straggler.rank)) for fact in facts]


def _phase_facts(steps: Steps, straggler: Straggler) -> list[Evidence]:
    """Return, as evidence, the median time of the phases that make a rank late, and the same time on the other ranks.

    The medians are over the steps from the straggler's first to its last late step. If it is late only now and then,
    they are means over its latest steps, as its mean lateness is. The list is empty if no recorded phase is the cause.
    If computing is the cause, only processor time is compared, because phases include waiting for other ranks.
    """
    by_processor = straggler.cause is Cause.COMPUTE
    times = steps.cpu if by_processor else steps.phases
    phases = PHASES_OF.get(straggler.cause, ())
    # On a GPU, processor time says little about how long a rank computes.
    if not any(name in times for name in phases) or (by_processor and steps.device_type == "cuda"):
        return []
    grid = steps.grid(times.total(phases))
    if straggler.pattern is Pattern.PERSISTENT:
        of_rank = grid.loc[straggler.first_step : straggler.last_step].median()
        which = f"medians of steps {straggler.first_step}-{straggler.last_step}"
    else:
        of_rank = grid.loc[[step.step for step in straggler.latest]].mean()
        which = "averages over these steps"
    mine, others = of_rank[straggler.rank], of_rank.drop(straggler.rank).median()
    if math.isnan(mine) or math.isnan(others):
        return []
    what = f"{CAUSE_NAMES[straggler.cause]}{' (processor time)' if by_processor else ''}"
    usual = f"{duration(others)} on the other ranks ({which})"
    text = f"{what} takes {duration(mine)} a step on rank {straggler.rank}, {usual}"
    return [Evidence(text=text, source=log_of_rank(steps, straggler.rank))]


def _lateness_fact(steps: Steps, straggler: Straggler) -> Evidence:
    """Return the evidence that says how late a rank is, with its log as the source."""
    compared = quantity(compared_steps(straggler), "compared step")
    when = f"between steps {straggler.first_step} and {straggler.last_step}"
    late_in = f"{straggler.steps_late} of {compared}, {when}, by {duration(straggler.lateness_s)} on average"
    text = f"rank {straggler.rank} is late in {late_in}{because_of(straggler.cause)}"
    return Evidence(text=text, source=log_of_rank(steps, straggler.rank))


_NEXT_BY_PATTERN = {
    Pattern.ROTATING: "make all ranks do this work in the same steps, so that they wait once instead of in turns",
    Pattern.HOST: "check this machine: other processes, clock speed, temperature, network and storage",
}
_NEXT_BY_CAUSE = {
    Cause.COMPUTE: "record profiler traces of this rank and of one that is not late, and compare them (`workbench"
    " compare OTHER LATE`). If the late rank runs more kernels, it has more work. If its kernels take longer, its"
    " device is slower or its inputs are larger",
    Cause.DATA: "find out why loading is slow on this rank only: its storage, the CPUs of its host, or its part of the"
    " data. More workers (num_workers) or a higher prefetch_factor can hide it",
    Cause.GC: "collect garbage in the same step on all ranks: call gc.disable() once, and gc.collect() every N steps",
    Cause.CHECKPOINT: "save checkpoints asynchronously (torchtitan: checkpoint.async_mode), or check this rank's"
    " storage",
    Cause.EVALUATION: "evaluate in the same step on all ranks",
    Cause.LOGGING: "log less often on this rank",
    Cause.UNRECORDED: "look at what this rank does between the recorded phases, such as reading, logging or sleeping:"
    " while the job runs, `py-spy dump --pid PID` shows it",
    Cause.MIXED: "check this rank's machine: other processes, clock speed, temperature",
}
