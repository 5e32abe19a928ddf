"""Compute how late each rank is, compared with the others, in each step.

Synchronised steps have the same duration on all ranks, so the step time does not show which rank is late. The work that
a rank does *before* it waits for the others shows it. This work is measured in two ways:

* CPU with gloo: by processor time, because waiting for others takes none. Data loading, garbage collection and
  checkpoints count by wall time, because they happen before any rank waits.
* GPUs: phases contain waiting. At the end of each phase a rank is behind the others by some time. Its lateness is the
  largest of these delays, because the ranks that wait for it catch up later in the step.

Example (GPU, seconds at the end of each phase): rank 0 loads data until 0.01 and ends its backward at 0.41. Rank 1
loads until 0.05 and also ends its backward at 0.41, because both wait for each other in its collectives. Their step
times are equal, but rank 1 was 0.04 s behind after `data_wait`: this is its lateness, and `data` is the cause.

Time in this project's recorders (profiler, snapshots) is left out, because only the measurement caused it.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from analyzers.columns import Floats, Mask
from analyzers.report import EVIDENCE_AT_MOST, Evidence, Finding, Severity
from analyzers.steps.model import Cause, Pattern, Problem, Straggler
from analyzers.steps.table import CAUSE_NAMES, Steps, because_of, confidence, log_of_rank
from analyzers.words import agree, duration, percent, quantity, rank_names

PHASES_OF: Mapping[Cause, tuple[str, ...]] = {
    Cause.COMPUTE: ("fwd", "bwd", "fwd_bwd", "grad_clip", "optim"),
    Cause.DATA: ("data_wait", "h2d"),
    Cause.GC: ("gc",),
    Cause.CHECKPOINT: ("ckpt_save",),
    Cause.EVALUATION: ("eval",),
    Cause.LOGGING: ("log",),
    Cause.UNRECORDED: (),
}
"""{cause of lateness: phases of a step whose extra time it explains}."""
_PHASE_ORDER = (
    "gc", "data_wait", "h2d", "fwd", "bwd", "fwd_bwd", "grad_clip", "optim", "loss_sync", "log", "ckpt_save", "eval",
)  # fmt: skip
"""The phases of a step in the order in which they follow each other."""
_UNRECORDED_AT_LEAST = 0.25
"""Time outside of the phases counts if a rank spends there at least this share of a step more than the others."""
_STRETCH = (10, 9)
"""The number of consecutive steps that are examined together, and how many of them must be late."""
_LOCAL_PHASES = ("gc", "data_wait", "h2d", "fwd", "log", "ckpt_save", "eval")
"""The phases in which a rank waits for no other rank; in a sharded model `fwd` has all-gathers, and is not local."""


@dataclass(frozen=True)
class Lateness:
    """The lateness of each rank in each step that all ranks finished.

    `excess` is a [step, rank] table of how much later (s) a rank is than a typical rank. `by_cause` has such a table
    for each cause: how much longer (s) the rank takes for this kind of work. The other fields have a value per step:
    `usual` is the work of a typical rank (s), `step_s` is the duration of the step (s, the median of the ranks),
    `longest_s` is its duration on the rank that took longest, and `all_tagged` is whether all ranks did something
    besides training in the step, such as a checkpoint. `by_processor` is whether computing was measured in processor
    time.
    """

    excess: pd.DataFrame
    by_cause: dict[Cause, pd.DataFrame]
    usual: "pd.Series[float]"
    step_s: "pd.Series[float]"
    longest_s: "pd.Series[float]"
    by_processor: bool
    all_tagged: "pd.Series[bool]"

    def __len__(self) -> int:
        return len(self.excess)

    @property
    def is_known(self) -> bool:
        return len(self.excess.columns) > 1 and any(grid.to_numpy().any() for grid in self.by_cause.values())


def lateness(steps: Steps) -> Lateness:
    """Return the lateness of each rank in every step that all ranks finished.

    Warm-up steps after a start or restart are left out.
    """
    # The first steps after a start compile, allocate and fill caches: there each rank is late in its own way.
    usable = (~steps.table["warmup"] & steps.table["dur_s"].notna()).to_numpy()
    # On CUDA processor time is mostly spent spinning in launches and syncs; it says nothing about the work.
    by_processor = bool(steps.cpu) and steps.device_type != "cuda"
    # Steps that a rank lacks are left out: there is nobody to compare with.
    step_s = steps.grid(steps.table["dur_s"] - steps.recorder_s, usable).dropna()
    work = _processor_work(steps, usable) if by_processor else _wall_work(steps, usable)
    if by_processor:
        work[Cause.UNRECORDED] = _unrecorded_work(steps, usable, work, step_s)
    total = _sum_of(work.values(), step_s)
    # Popped, so that a grid of 512 ranks x 10 000 steps is freed as soon as its excess is known.
    by_cause = {cause: _excess_over_others(rows_of(work.pop(cause), step_s)) for cause in list(work)}
    excess = _excess_over_others(total) if by_processor else _largest_delay(steps, usable, step_s)
    all_tagged = steps.grid(steps.table["tagged"], usable).loc[step_s.index].min(axis=1) > 0
    took, longest = step_s.median(axis=1), step_s.max(axis=1)
    return Lateness(excess, by_cause, others(total), took, longest, by_processor, all_tagged)


def _processor_work(steps: Steps, usable: Mask) -> dict[Cause, pd.DataFrame]:
    """Return each rank's own work in seconds, as one [step, rank] table per cause.

    Computing is measured in processor time. The other causes are measured in wall time, because in them no rank waits
    for others. `usable` is a mask of the rows of `steps.table` that count.
    """
    clocks = {c: steps.cpu if c is Cause.COMPUTE else steps.phases for c in PHASES_OF if c is not Cause.UNRECORDED}
    return {cause: steps.grid(clock.total(PHASES_OF[cause]), usable) for cause, clock in clocks.items()}


def _unrecorded_work(
    steps: Steps, usable: Mask, work: Mapping[Cause, pd.DataFrame], step_s: pd.DataFrame
) -> pd.DataFrame:
    """Return the seconds outside of the logged phases by which a rank makes the others wait, as a [step, rank] table.

    Outside of the phases a script may sleep, read or write. But a rank may also wait there for ranks with extra work
    inside the phases. So this time counts only as far as it exceeds the extra work of every other rank, and only if it
    is a large part of a step. `work` has the work in phases and `step_s` the durations of steps (s), both as [step,
    rank] tables; `usable` is a mask of the rows of `steps.table` that count.
    """
    residual = rows_of(steps.grid(steps.table["residual_ns"] / 1e9, usable), step_s)
    excess = _excess_over_others(residual).to_numpy().clip(min=0)
    known = _excess_over_others(_sum_of(work.values(), step_s)).to_numpy().clip(min=0)
    largest = known.max(axis=1, keepdims=True)
    # For the rank with the most extra work itself, the second largest is that of the others.
    second = np.partition(known, -2, axis=1)[:, [-2]] if known.shape[1] > 1 else np.zeros_like(largest)
    of_others = np.where(known < largest, largest, second)
    counted = excess - of_others
    enough = counted > _UNRECORDED_AT_LEAST * step_s.median(axis=1).to_numpy()[:, None]
    return pd.DataFrame(np.where(_in_stretches(enough), counted, 0.0), index=step_s.index, columns=step_s.columns)


def _in_stretches(flags: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return a copy of `flags`, bool[step, rank], that keeps a flag only if it recurs in neighbouring steps.

    A flag is kept if it lies in 10 consecutive steps of which at least 9 are flagged on its rank (`_STRETCH`). On a
    machine with more processes than cores any rank may lose some time in a single step; such a rank is no straggler.
    """
    length, least = _STRETCH
    if len(flags) < length:
        return np.zeros_like(flags)
    counts = np.lib.stride_tricks.sliding_window_view(flags, length, axis=0).sum(axis=-1)
    inside = np.zeros_like(flags)
    for shift in range(length):
        inside[shift : shift + len(counts)] |= counts >= least
    return inside & flags


def _wall_work(steps: Steps, usable: Mask) -> dict[Cause, pd.DataFrame]:
    """Return the seconds of each rank in phases in which it waits for no other rank: a [step, rank] table per cause."""
    work = {}
    for cause, names in PHASES_OF.items():
        local = [_phase_s(steps, name) for name in names if name in _LOCAL_PHASES and name in steps.phases]
        if local or cause is Cause.COMPUTE:
            work[cause] = steps.grid(sum(local, pd.Series(0.0, index=steps.table.index)), usable)
    return work


def _phase_s(steps: Steps, phase: str) -> "pd.Series[float]":
    """Return the seconds of a phase per row of `steps.table`, by the device's clock if recorded, else by the host's.

    If a device works, the host's time of a phase covers only the launches of kernels.
    """
    return steps.device[phase] if phase in steps.device else steps.phases[phase]


def _largest_delay(steps: Steps, usable: Mask, step_s: pd.DataFrame) -> pd.DataFrame:
    """Return each rank's largest delay (s) behind the others at the end of a phase, as a [step, rank] table.

    `usable` is a mask of the rows of `steps.table` that count; `step_s` has the steps and ranks of the result.
    """
    phase_end = delay = np.zeros(step_s.shape)
    rows = steps.grid_rows(step_s.index)
    for phase in _PHASE_ORDER:
        if phase in steps.phases:
            # Ranks leave the last collective of a step together, so sums from the start of the next are comparable.
            phase_end = phase_end + steps.cells(_phase_s(steps, phase), usable)[rows]
            # Those who wait catch up later in the step, so the largest delay counts, not that at the end.
            delay = np.maximum(delay, phase_end - _lower_median(phase_end)[:, None])
    return pd.DataFrame(delay, index=step_s.index, columns=step_s.columns)


def _sum_of(grids: Iterable[pd.DataFrame], like: pd.DataFrame) -> pd.DataFrame:
    return sum((rows_of(grid, like) for grid in grids), like * 0.0)


def rows_of(grid: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of a [step, rank] table for the steps of the table `like`.

    If these are all of its steps, the table is not copied.
    """
    return grid if len(grid) == len(like) else grid.loc[like.index]


def _excess_over_others(grid: pd.DataFrame) -> pd.DataFrame:
    return grid.sub(others(grid), axis=0)


def others(grid: pd.DataFrame) -> "pd.Series[float]":
    """Return, for each step of a [step, rank] table, the value of a typical rank: the lower median over ranks."""
    return pd.Series(_lower_median(grid.to_numpy()), index=grid.index)


def _lower_median(values: Floats) -> Floats:
    """Return the lower median of each row.

    Of two ranks this is the smaller value, so that the other rank shows as late.
    """
    middle = (values.shape[1] - 1) // 2
    medians: Floats = np.partition(values, middle, axis=1)[:, middle]
    return medians


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
    known = sorted({CAUSE_NAMES[straggler.cause] for straggler in group if straggler.cause is not Cause.MIXED})
    return f"the extra time is {' and '.join(known)}" if known else "the extra time has no single cause"


def waiting_text(steps: Steps, first: Straggler, ranks: Sequence[int]) -> str:
    """Return a clause such as `rank 3 makes the others wait in some steps`; its end depends on the pattern of
    lateness.
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
