"""Find the ranks that make the others wait: how often, why, and whether it is always the same ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pandas as pd

from analyzers.columns import Floats
from analyzers.steps.lateness import Lateness
from analyzers.steps.model import Cause, LateStep, Pattern, Straggler
from analyzers.steps.table import MAD_TO_STD, Steps, robust_deviation

STEPS_AT_LEAST = 3
_LATEST_AT_MOST = 5
SHARE_AT_LEAST = 0.01
"""The smallest share of the steps in which a straggler is late; it is also late in at least STEPS_AT_LEAST steps."""
_LOST_AT_LEAST = 0.01
"""The smallest share of the time of all steps that a straggler costs, if it is not late right to the end."""
_LASTING = 0.75
"""The share of the steps since its first late step in which a rank must be late to be persistently late."""
_TURNS = 0.6
"""Ranks take turns in being late if none of them is the latest in more than this share of the late steps."""
_ALL_TAGGED_SHARE = 0.3
"""In steps in which all ranks do more than train, a rank counts as late only from this share of the step on."""
NOISE = 4.0
"""The lateness threshold in robust standard deviations (MAD); healthy ranks stay below it."""
_MAIN_CAUSE_SHARE = 0.6
"""A cause is named if it explains more than this share of the lateness; else the cause is `Cause.MIXED`."""


@dataclass(frozen=True)
class Thresholds:
    """The limits above which a rank counts as late in a step, and as a straggler in the run.

    `late` is a lateness relative to the duration of a step in which no rank is late. Few steps prove little, so this
    limit is multiplied by 1 + `few_steps` / (number of steps). `cost` is the share of all time that the rank must cost
    the job.
    """

    late: float
    few_steps: float
    cost: float


_BY_PROCESSOR, _BY_WALL = Thresholds(0.25, 4, 0.1), Thresholds(0.05, 10, 0.03)
"""The thresholds for lateness measured in processor time, and for lateness measured in wall time.

Processor time varies more: equal work differs by a third where ranks share caches and cores.
"""


def stragglers(steps: Steps, late: Lateness) -> list[Straggler]:
    """Return the ranks that make the others wait, the costliest first; empty if the logs do not show lateness.

    Example: of 100 steps of 100 ms, rank 3 takes 40 ms longer than the others in steps 51 to 100. It is late in 50
    steps (`recurrence` 0.5) by 40 ms, `persistent` since step 51, and costs 20 ms per step on average.
    """
    if not late.is_known or len(late) < STEPS_AT_LEAST:
        return []
    thresholds = late_thresholds(late)
    cost = (_BY_PROCESSOR if late.by_processor else _BY_WALL).cost
    candidates = [_straggler_of(late, rank, thresholds, steps.steps[0]) for rank in steps.ranks]
    # Ranks in turns cost little each; only together they are worth a finding.
    rotating = _ranks_in_turns(late, thresholds, cost)
    costly = [s for s in candidates if s and (s.rank in rotating or _is_costly(late, s, cost))]
    last = int(late.step_s.index.max())
    costly = [s for s in costly if s.share >= _LOST_AT_LEAST or s.rank in rotating or _is_late_now(s, last)]
    patterned = [msgspec.structs.replace(s, pattern=Pattern.ROTATING) if s.rank in rotating else s for s in costly]
    return sorted(_mark_hosts(steps, patterned), key=lambda straggler: -straggler.share)


def late_thresholds(late: Lateness) -> Floats:
    """Return, for each step, the lateness in seconds above which a rank counts as late.

    It is a share of the duration of a step in which no rank is late. If processor time is measured, it is at most the
    work of the other ranks: a rank with twice their work counts as late, even if the step is mostly waiting for cores
    of a busy machine.
    """
    thresholds = _BY_PROCESSOR if late.by_processor else _BY_WALL
    undisturbed_s = float((late.step_s - late.excess.max(axis=1)).clip(lower=0).median())
    # The fewer the steps, the larger the excess that chance alone gives some rank.
    share_s = thresholds.late * (1 + thresholds.few_steps / len(late)) * undisturbed_s
    if late.by_processor:
        plain = np.minimum(share_s, late.usual.to_numpy())
    else:
        plain = np.full(len(late), max(share_s, NOISE * _lateness_noise(late)))
    # Where all ranks collect garbage, save or evaluate in a step, no two take equally long for it.
    return np.where(late.all_tagged, np.maximum(plain, _ALL_TAGGED_SHARE * late.step_s.to_numpy()), plain)


def _lateness_noise(late: Lateness) -> float:
    """Return the robust standard deviation of a rank's lateness from step to step, in seconds.

    It is computed from differences of neighbouring steps (hence the sqrt(2)), so a rank that is always late does not
    increase it.
    """
    if len(late) < 2:
        return 0.0
    differences = np.abs(np.diff(late.excess.to_numpy(), axis=0))
    return MAD_TO_STD * float(np.median(np.median(differences, axis=0)) / np.sqrt(2))


def _straggler_of(late: Lateness, rank: int, thresholds: Floats, first: int) -> Straggler | None:
    """Return a `Straggler` that says how often, how much and why a rank is late; None if the rank is rarely late.

    `thresholds` has the tolerated lateness (s) of each step, `first` is the first step in the logs.
    """
    excess = late.excess[rank]
    is_late = excess > thresholds
    late_s = excess[is_late]
    if len(late_s) < max(STEPS_AT_LEAST, SHARE_AT_LEAST * len(late)):
        return None
    lasting = _lasting_from(is_late)
    return Straggler(
        rank=rank,
        lateness_s=float(late_s.mean()),
        recurrence=len(late_s) / len(late),
        cause=_main_cause(late, rank, late_s.index),
        first_step=int(late_s.index.min())
        if lasting is None
        else _begin_of(excess, is_late, float(np.median(thresholds)), first),
        last_step=int(late_s.index.max()),
        steps_late=len(late_s),
        lost_s=float(late_s.sum() / len(late)),
        share=float(late_s.sum() / late.step_s.sum()),
        pattern=Pattern.RECURRING if lasting is None else Pattern.PERSISTENT,
        latest=_latest_steps(late, late_s),
        late_step_s=float(late.step_s[is_late].median()),
        other_step_s=None if is_late.all() else float(late.step_s[~is_late].median()),
    )


def _latest_steps(late: Lateness, late_s: "pd.Series[float]") -> list[LateStep]:
    """Return the steps in which a rank is latest, at most LATEST_AT_MOST; `late_s` has its lateness in its late steps.

    The result is in the order of steps.
    """
    latest = late_s.nlargest(_LATEST_AT_MOST).sort_index()
    took = late.longest_s.loc[latest.index]
    rows = zip(latest.index, latest, took, strict=True)
    return [LateStep(step=int(step), lateness_s=float(late_by), step_s=float(step_s)) for step, late_by, step_s in rows]


def _lasting_from(is_late: "pd.Series[bool]") -> int | None:
    """Return the first late step from which on the rank is late in most steps.

    `is_late` says for each step whether the rank counts as late. The result is None if there is no such step, or if
    most of the late steps come before it.
    """
    # Backwards, so that each entry is the share of late steps from there to the end.
    from_end = is_late[::-1].expanding()
    lasting = (from_end.mean() >= _LASTING) & (2 * from_end.sum() > is_late.sum())
    beginnings = is_late.index[is_late & lasting[::-1]]
    return int(beginnings.min()) if len(beginnings) else None


def _begin_of(excess: "pd.Series[float]", is_late: "pd.Series[bool]", threshold_s: float, first: int) -> int:
    """Return the step at which a rank's lateness began.

    `excess` is its lateness (s) and `is_late` whether it counts as late, both by step. The begin divides the steps so
    that lateness is below a limit before it, and above the limit from it on; the step with the smallest sum of
    distances on the wrong side of the limit is chosen. The limit lies between the usual values before and after, nearer
    to the one that varies less. The first step that counts as late is not used: if lateness varies around the threshold
    `threshold_s`, this step is a matter of chance. A rank that is late in all compared steps is late from the `first`
    step in the logs.

    Example: lateness of 0, 9, 0, 0, 20, 45, 50, 48 ms, threshold 8 ms. The usual values are 46 ms (varying by 4) and 0
    ms (by 1), so the limit is 46 * 1 / 5 = 9 ms. The begin is the step with 20 ms, because it leaves the least on the
    wrong side.
    """
    late_s, on_time_s = (np.asarray(excess[rows], dtype=np.float64) for rows in (is_late, ~is_late))
    level = float(np.median(late_s))
    # Never 0, because the sum of both is a divisor.
    before, after = (robust_deviation(values) + 1e-9 if len(values) else 1e-9 for values in (on_time_s, late_s))
    limit = float(np.clip(level * before / (before + after), min(threshold_s, level / 2), level / 2))
    # The sum for a begin at each step, up to a constant: one pass gives it for all of them.
    over = np.clip(excess.to_numpy(dtype=float), 0.0, 2 * limit) - limit
    at = int(np.concatenate([[0.0], np.cumsum(over)])[:-1].argmin())
    return int(str(excess.index[at])) if at else first


def _is_costly(late: Lateness, straggler: Straggler, cost: float) -> bool:
    # Not of the whole run: a rank that became slow in its last hundred steps is a straggler all the same.
    step_s = float(late.step_s.loc[straggler.first_step : straggler.last_step].sum())
    return straggler.lateness_s * straggler.steps_late >= cost * step_s


def _is_late_now(straggler: Straggler, last: int) -> bool:
    """Return whether a straggler has become slow and still is in the `last` step: what it has cost is no measure."""
    return straggler.pattern is Pattern.PERSISTENT and straggler.last_step == last


def _main_cause(late: Lateness, rank: int, steps: pd.Index) -> Cause:
    # Being faster than the others in one cause does not make up for another: clipped at 0.
    extra_s = {cause: float(grid.loc[steps, rank].clip(lower=0).sum()) for cause, grid in late.by_cause.items()}
    largest = max(extra_s, key=lambda cause: extra_s[cause])
    # The lateness may arise in a phase in which ranks also wait, which is no cause.
    to_explain = max(sum(extra_s.values()), float(late.excess.loc[steps, rank].sum()))
    return largest if extra_s[largest] > _MAIN_CAUSE_SHARE * to_explain else Cause.MIXED


def _ranks_in_turns(late: Lateness, thresholds: Floats, cost: float) -> set[int]:
    """Return the ranks that are late in turns, each of them in some of the steps.

    `thresholds` has, for each step, the lateness (s) above which a rank counts as late. The set is empty if the late
    steps are few, if they cost less than the share `cost` of the time, or if most of them are due to a single rank.
    """
    excess = late.excess.to_numpy()
    latest = excess.max(axis=1)
    is_late = latest > thresholds
    # Two ranks that are late by chance take no turns: twice the steps of a single straggler are needed.
    if is_late.sum() < 2 * STEPS_AT_LEAST or latest[is_late].sum() < cost * late.step_s.sum():
        return set()
    columns, counts = np.unique(excess.argmax(axis=1)[is_late], return_counts=True)
    # A rank that is late nearly always is a straggler of its own, whoever else is late at times.
    most_often = (excess > thresholds[:, None]).mean(axis=0).max()
    if len(columns) < 2 or counts.max() > _TURNS * is_late.sum() or most_often > _LASTING:
        return set()
    return {int(late.excess.columns[column]) for column in columns}


def _mark_hosts(steps: Steps, late: Sequence[Straggler]) -> list[Straggler]:
    """Return the stragglers, with the pattern HOST for those whose lateness is explained by their machine.

    A machine explains it if the machine has several ranks and all of them are late, and some other machine has ranks
    that are not late.
    """
    ranks_on: dict[str, set[int]] = {}
    for start in steps.starts:
        ranks_on.setdefault(start.host, set()).add(start.rank)
    late_ranks = {straggler.rank for straggler in late}
    slow = [ranks for host, ranks in ranks_on.items() if host and len(ranks) > 1 and ranks <= late_ranks]
    # If every machine were slow, the machine would explain nothing.
    together = set().union(*slow) if 0 < len(slow) < len(ranks_on) else set()
    return [msgspec.structs.replace(s, pattern=Pattern.HOST) if s.rank in together else s for s in late]
