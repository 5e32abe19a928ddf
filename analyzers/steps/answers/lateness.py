"""How late each rank comes to the others, step by step. Synchronised steps last equally long on all ranks, so only what
a rank does before it meets the others tells.

Two clocks tell it. On CPU and gloo, processor time is local work, as waiting for others takes none; data, garbage
collection and saving count by the wall, as they happen before anyone waits. Elsewhere phases contain waiting: a rank is
as late as it is behind the others at the end of the phase where that is most, and those who wait for it catch up later
in the step. What profiler and snapshots take is left out: it is the observer's own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzers.steps.model import Steps
from analyzers.steps.reading.log_lines import Array

CAUSES: Mapping[str, tuple[str, ...]] = {
    "compute": ("fwd", "bwd", "fwd_bwd", "grad_clip", "optim"),
    "data": ("data_wait", "h2d"),
    "gc": ("gc",),
    "checkpoint": ("ckpt_save",),
    "eval": ("eval",),
    "logging": ("log",),
}
IN_ORDER = (
    "gc",
    "data_wait",
    "h2d",
    "fwd",
    "bwd",
    "fwd_bwd",
    "grad_clip",
    "optim",
    "loss_sync",
    "log",
    "ckpt_save",
    "eval",
)
"""Phases as they follow each other in a step."""
BEFORE_MEETING = ("gc", "data_wait", "h2d", "fwd", "log", "ckpt_save", "eval")
"""Phases that (but for sharded forwards) wait for nobody."""


@dataclass(frozen=True)
class Lateness:
    """Seconds, a row a step that all ranks finished, a column a rank.

    `excess`: how much later than the others a rank is. `by_cause`: how much longer it takes for each cause.
    `usual`: what the others need, a step. `spent`: how long the step took. `measured`: whether by processor time.
    `apart`: whether all ranks did more than train in the step.
    """

    excess: pd.DataFrame
    by_cause: dict[str, pd.DataFrame]
    usual: "pd.Series[float]"
    spent: "pd.Series[float]"
    measured: bool
    apart: "pd.Series[bool]"

    def __len__(self) -> int:
        return len(self.excess)

    @property
    def told(self) -> bool:
        """Whether the logs know of anything that happens before the ranks meet, on several of them."""
        return len(self.excess.columns) > 1 and any(grid.to_numpy().any() for grid in self.by_cause.values())


def lateness(steps: Steps) -> Lateness:
    """Of all steps but the first of each start."""
    usable = (~steps.table["warmup"] & steps.table["dur_s"].notna()).to_numpy()
    measured = bool(steps.cpu) and steps.on != "cuda"
    spent = steps.grid(steps.table["dur_s"] - steps.observed, usable).dropna()
    work = by_processor(steps, usable) if measured else by_wall(steps, usable)
    total = sum_of(work.values(), spent)
    by_cause = {cause: beyond_others(rows_of(work.pop(cause), spent)) for cause in list(work)}
    excess = beyond_others(total) if measured else behind(steps, usable, spent)
    apart = steps.grid(steps.table["apart"], usable).loc[spent.index].min(axis=1) > 0
    return Lateness(excess, by_cause, others(total), spent.median(axis=1), measured, apart)


def by_processor(steps: Steps, usable: Array) -> dict[str, pd.DataFrame]:
    """Local work by cause: computing by processor time, what waits for nobody by the wall."""
    sources = {cause: steps.cpu if cause == "compute" else steps.phases for cause in CAUSES}
    return {cause: steps.grid(source.total(CAUSES[cause]), usable) for cause, source in sources.items()}


def by_wall(steps: Steps, usable: Array) -> dict[str, pd.DataFrame]:
    """Time by cause in phases that wait for nobody."""
    found = {}
    for cause, names in CAUSES.items():
        known = [clock(steps, name) for name in names if name in BEFORE_MEETING and name in steps.phases]
        if known or cause == "compute":
            found[cause] = steps.grid(sum(known, pd.Series(0.0, index=steps.table.index)), usable)
    return found


def clock(steps: Steps, phase: str) -> "pd.Series[float]":
    """A phase by the device's clock where it has one: on the host it only shows how long the launching took."""
    return steps.device[phase] if phase in steps.device else steps.phases[phase]


def behind(steps: Steps, usable: Array, spent: pd.DataFrame) -> pd.DataFrame:
    """How far a rank is behind the others at the end of the phase where that is most."""
    reached = late = np.zeros(spent.shape)
    rows = steps.places_of(spent.index)
    for phase in IN_ORDER:
        if phase in steps.phases:
            reached = reached + steps.cells(clock(steps, phase), usable)[rows]
            late = np.maximum(late, reached - middle_of_others(reached)[:, None])
    return pd.DataFrame(late, index=spent.index, columns=spent.columns)


def sum_of(grids: Iterable[pd.DataFrame], like: pd.DataFrame) -> pd.DataFrame:
    return sum((rows_of(grid, like) for grid in grids), like * 0.0)


def rows_of(grid: pd.DataFrame, like: pd.DataFrame) -> pd.DataFrame:
    """The steps that another table has; without a copy where it has all."""
    return grid if len(grid) == len(like) else grid.loc[like.index]


def beyond_others(grid: pd.DataFrame) -> pd.DataFrame:
    """How much more than the others a rank has."""
    return grid.sub(others(grid), axis=0)


def others(grid: pd.DataFrame) -> "pd.Series[float]":
    """What the others have: the lower median over ranks, with two ranks the smaller."""
    return pd.Series(middle_of_others(grid.to_numpy()), index=grid.index)


def middle_of_others(values: Array) -> Array:
    """The same of a table without its names."""
    middle = (values.shape[1] - 1) // 2
    found: Array = np.partition(values, middle, axis=1)[:, middle]
    return found
