"""Who makes the others wait. Synchronised steps last equally long on all ranks, so only local work tells.

On CPU and gloo the wall time of forward and backward contains the waiting for others, their processor time does not;
data, garbage collection and saving happen before anyone waits, so their wall time counts. What profiler and snapshots
take is left out: it is the observer's own, and grows with what there is to record.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from analyzers.steps.model import Steps, Straggler

CAUSES: Mapping[str, tuple[str, ...]] = {
    "compute": ("fwd", "bwd", "fwd_bwd", "grad_clip", "optim"),
    "data": ("data_wait", "h2d"),
    "gc": ("gc",),
    "checkpoint": ("ckpt_save",),
    "eval": ("eval",),
    "logging": ("log",),
}
BY_PROCESSOR = ("compute",)
"""Causes whose phases wait for others, so that only processor time is local."""
LATE, UNSURE = 0.25, 4
"""Late is who works longer than the others by this share of what a step takes without anyone late. Equal work differs
by a third in processor time where caches and cores are shared; so the fewer the steps (against UNSURE), the more it
takes. Who does twice the work of the others is late all the same: on a busy machine a step is mostly waiting for cores.
"""
COST = 0.1
"""A straggler costs at least this share of the time of all steps."""
LASTING = 0.75
STEPS_AT_LEAST = 3


def stragglers(steps: Steps) -> list[Straggler]:
    """Ranks that keep the others waiting, the costliest first."""
    work = local_work(steps)
    usable = ~steps.table["warmup"]
    total = by_step(steps, work.sum(axis=1), usable)
    if len(total.columns) < 2 or len(total) < STEPS_AT_LEAST:
        return []
    others = reference(total)
    excess = total.sub(others, axis=0)
    spent = by_step(steps, steps.table["dur_s"] - steps.observed, usable).median(axis=1)
    bar = LATE * (1 + UNSURE / len(total)) * float((spent - excess.max(axis=1)).clip(lower=0).median())
    bars = others.clip(upper=bar)
    found = [judged(steps, work, excess[rank], bars, float(spent.sum()), usable) for rank in excess.columns]
    return sorted((s for s in found if s), key=lambda s: -s.share)


def local_work(steps: Steps) -> pd.DataFrame:
    """Seconds of local work by cause, one row a rank and step."""
    parts = {}
    for cause, phases in CAUSES.items():
        source = steps.cpu if cause in BY_PROCESSOR and len(steps.cpu.columns) else steps.phases
        if cause in BY_PROCESSOR and source is steps.phases:
            continue
        parts[cause] = source[[name for name in phases if name in source]].sum(axis=1)
    return pd.DataFrame(parts, index=steps.table.index)


def by_step(steps: Steps, values: pd.Series, usable: pd.Series) -> pd.DataFrame:
    """One row a step that all ranks finished, one column a rank."""
    return steps.grid(values, usable).dropna()


def reference(total: pd.DataFrame) -> pd.Series:
    """What the others need: the lower median over ranks, with two ranks the smaller."""
    return total.quantile(0.5, axis=1, interpolation="lower")


def judged(
    steps: Steps, work: pd.DataFrame, excess: pd.Series, bars: pd.Series, spent: float, usable: pd.Series
) -> Straggler | None:
    """The rank of this column of excesses, if it is late by more than `bars` often and that costs a part of `spent`."""
    late = excess > bars
    found = excess[late]
    if len(found) < STEPS_AT_LEAST or found.sum() < COST * spent:
        return None
    return Straggler(
        rank=int(str(excess.name)),
        lateness_s=float(found.mean()),
        recurrence=len(found) / len(excess),
        cause=cause_of(steps, work, excess.name, found.index, usable),
        first_step=first_of(late),
        share=float(found.sum() / spent),
    )


def first_of(late: pd.Series) -> int:
    """The late step from which on most steps are late, else the first."""
    onward = late[::-1].expanding().mean()[::-1]
    lasting = onward[late & (onward >= LASTING)]
    return int((lasting if len(lasting) else late[late]).index.min())


def cause_of(steps: Steps, work: pd.DataFrame, rank: object, late: pd.Index, usable: pd.Series) -> str:
    """The cause that covers most of the excess; `mixed` where none covers the larger part."""
    gains = {}
    for cause in work:
        table = by_step(steps, work[cause], usable).loc[late]
        gains[str(cause)] = float((table[rank] - reference(table)).clip(lower=0).sum())
    best = max(gains, key=lambda cause: gains[cause])
    return best if gains[best] > 0.6 * float(np.sum(list(gains.values()))) else "mixed"
