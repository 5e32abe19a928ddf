"""Tables with a row per step, from which the charts of steps are drawn."""

from collections.abc import Sequence

import pandas as pd

from analyzers.run import Artefact
from analyzers.steps import views
from analyzers.store import Options


def phases_by_step(logs: Sequence[Artefact], options: Options, rank: int) -> pd.DataFrame:
    """Return a table with a row per step of a rank: seconds in each phase, step number, and duration `dur_s`."""
    frame = views.phases(logs, options, rank)
    steps = frame.index.get_level_values("step")
    return (
        frame.clip(lower=0).assign(step=steps.to_numpy(), dur_s=frame.clip(lower=0).sum(axis=1)).reset_index(drop=True)
    )


def losses(series: pd.DataFrame, first_nonfinite_step: int | None) -> pd.DataFrame:
    """Return a table with the columns `step`, `loss` (highest of all ranks) and `broken` (loss is NaN or infinite).

    A step without a loss counts as broken from step `first_nonfinite_step` on. Before that step, or if there is no such
    step (None), its loss was only not logged.
    """
    loss = series.groupby("step")["loss"].max().reset_index()
    if first_nonfinite_step is None:
        return loss.assign(broken=False)
    # A step before the first broken one may lack a loss because it was not logged.
    return loss.assign(broken=loss["loss"].isna() & (loss["step"] >= first_nonfinite_step))
