"""Divide the wall time of a run, to the nanosecond, into training and everything else.

Each rank has a timeline from the first start of the run to its end. A step is divided into *parts*, such as `data` or
`checkpoint`. In the order of PARTS, each part gets the time of its phases, but at most what is left of the step; the
rest is `productive`. The time between two steps counts for the later step. So the parts of every rank add up to the
wall time.

Example, in seconds: a rank starts at 0; step 1 runs from 10 to 14 (1 s of it `data_wait`) and step 2 from 14 to 17 (2 s
`ckpt_save`). The job starts again, and step 2 is done again from 30 to 33. Then `startup` is 10, `data` 1, `redone` 3
(the first run of step 2, whose work was lost), `restart` 13 (from 17 to 30) and `productive` 3 + 3: 33 in all.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median_low

import numpy as np
import pandas as pd

from analyzers.columns import Floats, Integers, Mask
from analyzers.report import Evidence, Finding, Severity
from analyzers.steps.lateness import Lateness
from analyzers.steps.model import (
    Cause,
    Change,
    ChangeKind,
    GlobalStall,
    Goodput,
    LongStep,
    Pattern,
    Problem,
    StepsData,
    Straggler,
)
from analyzers.steps.stragglers import late_thresholds
from analyzers.steps.table import SAME_MOMENT, Steps, because_of, confidence, robust_deviation
from analyzers.words import duration, percent, percent_change, quantity, rank_names

PHASES: Mapping[str, tuple[str, ...]] = {
    "data": ("data_wait", "h2d"),
    "checkpoint": ("ckpt_save",),
    "evaluation": ("eval",),
    "gc": ("gc",),
    "recording": ("profiler", "snapshot", "log"),
}
"""{part of the wall time: the phases of a step that belong to it}."""
PARTS = ("productive", *PHASES, "stall", "startup", "restart", "redone", "between", "ending")
"""All parts of the wall time.

`productive` is the rest of a step that no other part takes. The parts from `data` to `recording` are phases of a step
(`PHASES`). `stall` is the time lost to waiting for late ranks or to an unusually long step, `redone` the time of
steps whose work a restart lost. `startup` is the time before the first step, `restart` the time from the last step of
a process to the first step of the next one, `between` any other time between two steps, and `ending` the time after a
rank's last step.
"""
LATEST_NS, _LONGEST_NS = 1 << 62, 1 << 55
"""The latest plausible time (the year 2116) and the longest plausible step (a year), in ns."""
_RANKS_AT_ONCE = 64
"""The number of ranks that are processed together; more would take more memory but no less time."""
_ALL_ROWS = slice(None)
_OUTLIER, _OUTLIER_SHARE = 6.0, 0.5
"""The limits above the median from which on a plain step (one that did nothing but train) counts as stalled.

The first number is in robust standard deviations, the second is a share of the median; a stalled step exceeds both.
"""


def goodput(steps: Steps, late: Lateness) -> Goodput | None:
    """Return how the wall time of a run is divided into parts, as the mean over ranks.

    `late` has the lateness of each rank in each step; the time that ranks wait for a late rank counts as stalled. The
    result is None if the logs record no start times of steps.
    """
    table, bounds = goodput_by_rank(steps, late), extent(steps)
    if bounds is None:
        return None
    wall = int(table.iloc[0].sum())
    parts = divided([sum(table[name].tolist()) for name in PARTS], len(table))
    named = {name: ns for name, ns in zip(PARTS, parts, strict=True) if ns}
    return Goodput(
        started_ns=bounds[0],
        wall_ns=wall,
        parts=named,
        productive=named.get("productive", 0) / wall if wall else 0.0,
    )


def divided(sums: Sequence[int], count: int) -> list[int]:
    """Return each sum divided by `count`, rounded so that the results add up to the total divided by `count`.

    The latter is rounded down. Example: `divided([5, 3], 4)` is `[1, 1]`, because (5 + 3) / 4 = 2 (largest remainder
    method).
    """
    round_up = sum(value % count for value in sums) // count
    largest = sorted(range(len(sums)), key=lambda i: -(sums[i] % count))[:round_up]
    return [value // count + (i in largest) for i, value in enumerate(sums)]


def goodput_by_rank(steps: Steps, late: Lateness) -> pd.DataFrame:
    """Return the ns of each part of the wall time (columns) on each rank (rows); each row adds up to the wall time.

    `late` has the lateness of each rank in each step; the time that ranks wait for a late rank counts as stalled. The
    table is empty if the logs do not record start times of steps.
    """
    bounds = extent(steps)
    if bounds is None:
        return pd.DataFrame()
    stall_ns = _stalled_ns(steps, late)
    groups = (steps.ranks[first : first + _RANKS_AT_ONCE] for first in range(0, len(steps.ranks), _RANKS_AT_ONCE))
    tables = [parts_of(steps, rows, stall_ns, bounds) for ranks in groups if len(rows := timeline(steps, ranks))]
    return pd.concat(tables).rename_axis("rank").astype(np.int64)[list(PARTS)]


def parts_of(steps: Steps, rows: pd.DataFrame, stall_ns: Integers, bounds: tuple[int, int]) -> pd.DataFrame:
    """Return a table of the ns that each rank (row) spent on each part of the wall time (column).

    `rows` has the steps of some ranks, as `timeline` returns them. `stall_ns` has the stalled time for each row of
    `steps.table`; `bounds` are the start and the end of the run (Unix ns).
    """
    begin, end = bounds
    # Clocks that were set, or damaged rows, may overlap: a step ends at the latest where the next one starts.
    rows["dur_ns"] = np.minimum(rows["dur_ns"], _next_start(rows, end) - rows["start_ns"])
    parts = _within_steps(steps, rows, stall_ns) | _between_steps(rows, begin, end)
    return pd.DataFrame(parts).groupby(rows["rank"].to_numpy()).sum()


def extent(steps: Steps) -> tuple[int, int] | None:
    """Return the start and the end of the run, in Unix ns; None if the logs do not record start times of steps.

    The start is the earliest start of a process or a step, the end is the latest end of a step.
    """
    starts, ends = [], []
    for table in (steps.table, steps.redone):
        start, length = (table[name].to_numpy() for name in ("start_ns", "dur_ns"))
        timed = _is_timed(table)
        starts += [int(start[timed].min())] if timed.any() else []
        ends += [int((start + length * table["covers"].to_numpy())[timed].max())] if timed.any() else []
    started = (start.started_ns for start in steps.starts if start.started_ns > 0)
    return (min([*starts, *started]), max(ends)) if starts else None


def _is_timed(table: pd.DataFrame) -> Mask:
    # As floats: the product of damaged numbers can overflow int64.
    length = table["dur_ns"].to_numpy().astype(float) * table["covers"].to_numpy()
    start = table["start_ns"].to_numpy()
    timed: Mask = (start >= 1) & (start <= LATEST_NS) & (length >= 0) & (length <= _LONGEST_NS)
    return timed


def timeline(steps: Steps, ranks: Sequence[int]) -> pd.DataFrame:
    """Return the steps of some ranks in order of rank and start time; the ranks must be consecutive.

    A step that was done again after a restart has a row for each run. Column `row` is the row number in `steps.table`,
    or -1 for the earlier run of such a step. `dur_ns` is multiplied by the number of steps that a row covers. Steps
    whose start time or duration is not recorded are left out.
    """
    columns = ["rank", "session", "start_ns", "dur_ns", "covers"]
    first, last = np.searchsorted(steps.table["rank"].to_numpy(), [ranks[0], ranks[-1] + 1])
    kept = steps.table.iloc[first:last][columns].assign(row=np.arange(first, last))
    redone = steps.redone[steps.redone["rank"].between(ranks[0], ranks[-1])]
    rows = pd.concat([kept, redone[columns].assign(row=-1)], ignore_index=True)
    rows = rows[_is_timed(rows)]
    # A row of a coarse log covers several steps, and its duration is their mean.
    rows["dur_ns"] *= rows["covers"]
    return rows.sort_values(["rank", "start_ns"], kind="stable", ignore_index=True)


def _next_start(rows: pd.DataFrame, end: int) -> Integers:
    """Return, for each step in `rows` (a `timeline` table), the start of the next step of the same rank, in Unix ns.

    For the last step of a rank the result is `end`.
    """
    following = np.append(rows["start_ns"].to_numpy()[1:], end)
    # Unlike a shift within groups, this is one pass over the rows of all ranks.
    following[np.append(_rank_changes(rows), True)] = end
    return following


def _rank_changes(rows: pd.DataFrame) -> Mask:
    """Return, for each row of a `timeline` table except the last, whether the next row belongs to a different rank."""
    ranks = rows["rank"].to_numpy()
    return np.asarray(ranks[1:] != ranks[:-1])


def _within_steps(steps: Steps, rows: pd.DataFrame, stall_ns: Integers) -> dict[str, Integers]:
    """Return {part: ns of each step that belong to this part}, for the parts of the wall time inside of steps.

    The arrays have a value for each step in `rows` (a `timeline` table); `stall_ns` has a value for each row of
    `steps.table`. Each part in turn takes at most the time that the earlier parts left; the rest is `productive`.
    """
    row, rest = rows["row"].to_numpy(), rows["dur_ns"].to_numpy().copy()
    # The work of a step that was done again is lost, whatever it went for.
    redone = row < 0
    parts = {"redone": np.where(redone, rest, 0)}
    rest[redone] = 0
    wanted = {part: _phase_ns(steps, names, row) for part, names in PHASES.items()} | {"stall": stall_ns[row]}
    for part, ns in wanted.items():
        taken = np.where(redone, 0, np.minimum(rest, ns * rows["covers"].to_numpy()))
        # A phase that a damaged log makes negative takes nothing.
        parts[part] = np.maximum(taken, 0)
        rest = rest - parts[part]
    return parts | {"productive": rest}


def _phase_ns(steps: Steps, names: tuple[str, ...], rows: Integers | slice = _ALL_ROWS) -> Integers:
    logged = [steps.phases.at(name, rows) for name in names if name in steps.phases]
    return _to_ns(sum(logged, np.zeros(len(steps.table))[rows]))


def _to_ns(seconds: Floats) -> Integers:
    """Return durations in whole ns; unknown durations become 0, and impossibly long ones (damaged logs) are limited."""
    # Whatever a log claims, sums of a few durations then stay below what int64 holds.
    limited = np.clip(np.nan_to_num(seconds), -_LONGEST_NS / 1e9, _LONGEST_NS / 1e9)
    return np.rint(limited * 1e9).astype(np.int64)


def _stalled_ns(steps: Steps, late: Lateness) -> Integers:
    """Return, for each row of `steps.table`, the ns lost to waiting for late ranks or to an unusually long step."""
    work_ns = steps.table["dur_ns"].to_numpy() - sum(_phase_ns(steps, names) for names in PHASES.values())
    waited_ns = _to_ns(_waited_s(steps, late))
    plain = steps.plain.to_numpy()
    if not plain.any():
        return waited_ns
    # By rank, as the stages of a pipeline differ in every step.
    by_rank = pd.Series(work_ns[plain]).groupby(steps.table["rank"].to_numpy()[plain])
    median, spread = by_rank.median(), by_rank.agg(lambda ns: robust_deviation(ns.to_numpy()))
    ranks = steps.table["rank"].to_numpy()
    usual = median.reindex(ranks).to_numpy()
    extra = work_ns - usual
    outlier = plain & (extra > _OUTLIER * spread.reindex(ranks).to_numpy()) & (extra > _OUTLIER_SHARE * usual)
    return np.maximum(waited_ns, np.where(outlier, extra, 0).astype(np.int64))


def _waited_s(steps: Steps, late: Lateness) -> Floats:
    """Return, for each row of `steps.table`, the seconds that its rank waited for the latest rank of the step.

    The value is 0 in steps in which no rank counts as late.
    """
    rows = np.zeros(len(steps.table))
    if not late.is_known or not len(late):
        return rows
    latest = late.excess.max(axis=1)
    waits = late.excess.rsub(latest, axis=0).where(latest > late_thresholds(late), 0.0)
    step = waits.index.get_indexer(pd.Index(steps.table["step"]))
    rank = waits.columns.get_indexer(pd.Index(steps.table["rank"]))
    both = (step >= 0) & (rank >= 0)
    rows[both] = waits.to_numpy()[step[both], rank[both]]
    return rows


def _between_steps(rows: pd.DataFrame, begin: int, end: int) -> dict[str, Integers]:
    """Return {part: ns}, for the parts of the wall time that lie outside of steps, such as `startup` and `restart`.

    The arrays have a value for each step in `rows` (a `timeline` table). The time before a step is in the row of this
    step; the time after a rank's last step is in the row of this last step. `begin` and `end` are the start and the end
    of the run (Unix ns).
    """
    starts, ends = rows["start_ns"].to_numpy(), (rows["start_ns"] + rows["dur_ns"]).to_numpy()
    first = np.insert(_rank_changes(rows), 0, True)
    last = np.append(_rank_changes(rows), True)
    previous_end = np.insert(ends[:-1], 0, begin)
    gap = starts - np.where(first, begin, previous_end)
    # A new session is a new process: what lies between is the restart.
    session = rows["session"].to_numpy()
    restarted = ~first & np.insert(session[1:] != session[:-1], 0, False)
    return {
        "startup": np.where(first, gap, 0),
        "restart": np.where(restarted, gap, 0),
        "between": np.where(first | restarted, 0, gap),
        "ending": np.where(last, end - ends, 0),
    }


STEPS_AT_LEAST = 20
_DATA_SHARE, _CHECKPOINT_SHARE, _RESTART_SHARE = 0.2, 0.1, 0.1
"""The shares of the wall time above which data loading, checkpoints and restarts are reported."""
_LONG_RUN_NS = 600 * 10**9
"""The shortest run, in ns, for which restarts are reported.

In shorter runs, start-up takes most of the time anyway.
"""


class Part(StrEnum):
    """A part of the wall time that may cost too much."""

    DATA = "data"
    CHECKPOINT = "checkpoint"
    RESTART = "restart"


@dataclass(frozen=True)
class Overhead:
    """A part of the wall time that costs too much.

    For `Part.DATA`, `seconds` is the waiting per step and `share` its share of a step. For the other parts, `seconds`
    is the sum over the whole run, and `share` is the share of the run's wall time.
    """

    part: Part
    share: float
    seconds: float


def overheads(data: StepsData) -> list[Overhead]:
    """Return the parts of the wall time that cost too much: waiting for data, checkpoints, restarts."""
    if max(rank.steps for rank in data.ranks) < STEPS_AT_LEAST:
        return []
    waiting = _data_overhead(data)
    return [*([waiting] if waiting else []), *_run_overheads(data)]


def _data_overhead(data: StepsData) -> Overhead | None:
    """Return an `Overhead` on the wait for data in a typical step of most ranks; None if it is short."""
    waits = [(rank.phases.get("data_wait", 0.0), rank.median_step_s) for rank in data.ranks]
    timed = [(wait / step, wait) for wait, step in waits if step]
    # The lower median: with two ranks both must wait.
    share, wait = median_low(timed) if timed else (0.0, 0.0)
    return Overhead(Part.DATA, share, wait) if share >= _DATA_SHARE else None


def _run_overheads(data: StepsData) -> list[Overhead]:
    """Return an `Overhead` for blocking checkpoints and one for restarts, if they take too much of the run."""
    if data.goodput is None:
        return []
    wall, parts = data.goodput.wall_ns, data.goodput.parts
    saving = parts.get("checkpoint", 0)
    # Work that a restart lost is part of its price.
    lost = (parts.get("restart", 0) + parts.get("redone", 0)) * (wall >= _LONG_RUN_NS)
    costs = ((Part.CHECKPOINT, saving, _CHECKPOINT_SHARE), (Part.RESTART, lost, _RESTART_SHARE))
    return [Overhead(part, ns / wall, ns / 1e9) for part, ns, limit in costs if ns > limit * wall]


_PHASES_NAMED = 3
_LONG_STEP_COST = 0.01
"""The share of the time of all steps from which on a single long step is a warning."""


def stall_finding(steps: Steps, stall: GlobalStall) -> Finding:
    between = f"between steps {stall.first_step} and {stall.last_step}"
    return Finding(
        id=Problem.GLOBAL_STALL.finding_id,
        severity=Severity.WARNING,
        title=f"all ranks were slow in the same {quantity(stall.steps, 'step')} {between}{because_of(stall.cause)}:"
        f" {duration(stall.lost_s)} lost in total",
        why="in these steps even the fastest rank took far longer than in other steps. The lost time is"
        f" {percent(stall.share)} of the time of all steps",
        next=_STALL_NEXT.get(stall.cause, "check what all ranks share, such as storage and network, in these steps"),
        ranks=steps.ranks,
        step=stall.first_step,
        confidence=confidence(steps),
    )


def long_step_finding(steps: Steps, stall: LongStep) -> Finding:
    """Return the finding on a single step that took far longer than the steps around it.

    The severity is INFO if the step cost only a small part of the run.
    """
    times = stall.duration_s / stall.usual_s if stall.usual_s else 0.0
    waited = f"; the others waited for {rank_names(stall.ranks)}" if len(stall.ranks) < len(steps.ranks) else ""
    where = f"most of its extra time is in the phase {stall.phase}" if stall.phase else "no recorded phase explains it"
    return Finding(
        id=Problem.LONG_STEP.finding_id,
        severity=Severity.WARNING if stall.share >= _LONG_STEP_COST else Severity.INFO,
        title=f"step {stall.step} takes {duration(stall.duration_s)}, {times:.0f} times the usual"
        f" {duration(stall.usual_s)}{waited}",
        why=f"no step near step {stall.step} takes so long; {where}. The extra time is {percent(stall.share)} of the"
        " time of all steps",
        next="check what happened at that time: a checkpoint, recompilation, garbage collection, other jobs on the"
        " machine, or slow storage or network",
        ranks=stall.ranks,
        step=stall.step,
        confidence=0.8,
    )


_STALL_NEXT = {
    Cause.DATA: "check the storage of the data, and let the DataLoader read further ahead (prefetch_factor)",
    Cause.CHECKPOINT: "save checkpoints asynchronously (torchtitan: checkpoint.async_mode), or to faster storage",
    Cause.GC: "run Python's garbage collector less often, or only on young objects: gc.disable(), and gc.collect(1)"
    " every N steps",
}


def slowdown_findings(steps: Steps, changes: Sequence[Change], stragglers: Sequence[Straggler]) -> list[Finding]:
    """Return a list with the finding on the largest slowdown that is not due to a straggler; empty if there is none."""
    # A slowdown that begins with a straggler would say the same twice.
    slower = [c for c in changes if c.after_s > c.before_s and not _is_explained(c, stragglers)]
    return [_slowdown_finding(steps, max(slower, key=lambda c: c.after_s - c.before_s))] if slower else []


def _is_explained(change: Change, stragglers: Sequence[Straggler]) -> bool:
    return any(
        s.pattern is not Pattern.RECURRING and abs(s.first_step - change.step) <= SAME_MOMENT for s in stragglers
    )


_GRADUAL_NEXT = (
    "look for what grows with the number of steps: a list or cache that is searched, a log file that is rewritten"
    " in each step, memory that is not freed, or a device that gets hotter. If you have a profiler trace of an early"
    " step and one of a late step, compare them (`workbench compare EARLY LATE`)"
)
_SUDDEN_NEXT = (
    "check what changed at step {step}: other jobs on the machine, the data, or the clock speed of the device. If you"
    " have a profiler trace from before this step and one from after it, compare them (`workbench compare BEFORE"
    " AFTER`)"
)
_NOTABLE_SHARE = 0.01
"""The share of a slowdown above which the growth of a phase is evidence for it."""


def _slowdown_reason(change: Change, *, gradual: bool) -> str:
    """Return a clause with the increase of the median step time.

    If the increase is sudden (not `gradual`), the clause adds that it lasted, so that it is not due to a few slow
    steps.
    """
    rise = duration(change.after_s - change.before_s)
    return (
        f"steps got longer little by little: the median of the last steps is {rise} above that of the first ones"
        if gradual
        else f"from step {change.step} on the median is {rise} higher and stays there, so this is not due to a few slow"
        " steps"
    )


def _slowdown_finding(steps: Steps, change: Change) -> Finding:
    largest = sorted(change.phases.items(), key=lambda item: -item[1])[:_PHASES_NAMED]
    notable = _NOTABLE_SHARE * (change.after_s - change.before_s)
    gradual = change.kind is ChangeKind.DRIFT
    when = "gradually over the run" if gradual else f"from step {change.step} on"
    more = percent_change(change.before_s, change.after_s)
    return Finding(
        id=Problem.SLOWDOWN.finding_id,
        severity=Severity.WARNING,
        title=f"steps became slower {when}: median step time {duration(change.before_s)} ->"
        f" {duration(change.after_s)} ({more})",
        why=_slowdown_reason(change, gradual=gradual),
        next=_GRADUAL_NEXT if gradual else _SUDDEN_NEXT.format(step=change.step),
        ranks=steps.ranks,
        step=change.step,
        evidence=[
            Evidence(text=f"the phase {name} takes {duration(extra)} more per step")
            for name, extra in largest
            if extra > notable
        ],
        confidence=0.8,
    )


def overhead_finding(steps: Steps, overhead: Overhead) -> Finding:
    """Return the finding on a part of the wall time that costs too much, such as checkpoints."""
    activity, whole, scope, why, advice = _OVERHEADS[overhead.part]
    return Finding(
        id=f"steps.{overhead.part}_time",
        severity=Severity.WARNING,
        title=f"{activity} {percent(overhead.share)} of {whole}: {duration(overhead.seconds)} {scope}",
        why=why,
        next=advice,
        ranks=steps.ranks,
        confidence=0.9,
    )


_OVERHEADS = {
    Part.DATA: (
        "waiting for data takes",
        "the time of a step",
        "per step on most ranks",
        "a rank does not train while it waits for its next batch",
        "raise num_workers and prefetch_factor of the DataLoader, and find out which of its transforms take the time",
    ),
    Part.CHECKPOINT: (
        "saving checkpoints takes",
        "the time of the run",
        "in total",
        "no rank trains while a checkpoint is saved",
        (
            "save asynchronously (torchtitan: checkpoint.async_mode), less often (checkpoint.interval), or to faster"
            " storage"
        ),
    ),
    Part.RESTART: (
        "restarts, with the steps that were trained again, take",
        "the time of the run",
        "in total",
        "no rank trains between two attempts, and steps after the last checkpoint are trained again",
        (
            "find out what ended the earlier attempts (`workbench inspect` on the folder of the run), and save"
            " checkpoints more often (torchtitan: checkpoint.interval)"
        ),
    ),
}
"""{part of the wall time: (activity, what its share is of, what its seconds are of, explanation, advice)}."""
