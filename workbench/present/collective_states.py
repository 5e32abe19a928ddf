"""Select what a matrix of collectives shows: the process group that hangs, and the ranks and collectives in it."""

import pandas as pd

from analyzers.hangs import views
from analyzers.hangs.model import Group, HangData
from analyzers.run import Run
from analyzers.store import Options

HALF = 0.5


def group_in_view(data: HangData, wanted: str | None = None) -> Group:
    """Return the process group with the name `wanted`, or else the one that hangs; `data` has at least one group."""
    name = wanted or (data.culprits[0].group if data.culprits else None)
    return next((group for group in data.groups if group.name == name), data.groups[0])


def rank_states(
    run: Run, group: Group, collectives: int, single_ranks: int, options: Options | None = None
) -> pd.DataFrame:
    """Return the states of the last `collectives` collectives of a process group, with a row per rank.

    The table is that of `hangs.views.matrix`; if there are more than `single_ranks` ranks, those with equal rows share
    one.
    """
    frame = from_most_ranks(views.matrix(run, group.name, collectives, options))
    # Thousands of rows would take a browser seconds, and nearly all of them are equal.
    return frame if len(frame) <= single_ranks else views.folded(frame)


def from_most_ranks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the states without the first collectives, of which fewer than half of the ranks have a record.

    A rank that stopped early still has in its ring buffer what the others have overwritten.
    """
    known = (frame != "").mean() >= HALF
    return frame.loc[:, known.idxmax() :] if known.any() else frame
