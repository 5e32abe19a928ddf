"""What faces draw of the steps: small tables."""

from collections.abc import Sequence

import pandas as pd

from analyzers import run, store
from analyzers.steps.load import load


def series(artefacts: Sequence[run.Artefact], options: store.Options | None = None) -> pd.DataFrame:
    """One row a rank and step: rank, step, dur_s, loss, grad_norm, memory_bytes, tokens_per_s, tags, apart."""
    table = load(artefacts, options or store.Options()).table
    rate = (table["tokens"] / table["dur_s"]).where(table["dur_s"] > 0)
    columns = ["rank", "step", "dur_s", "loss", "grad_norm", "memory_bytes", "tokens_per_s", "tags", "apart"]
    return table.assign(tokens_per_s=rate)[columns]


def phases(
    artefacts: Sequence[run.Artefact], options: store.Options | None = None, rank: int | None = None
) -> pd.DataFrame:
    """Seconds by phase, one row a step (of one rank, or of all), indexed by (rank, step); `residual` is the rest."""
    steps = load(artefacts, options or store.Options())
    table = steps.phases.assign(residual=steps.table["residual_ns"] / 1e9)
    table.index = pd.MultiIndex.from_frame(steps.table[["rank", "step"]])
    return table if rank is None else table.loc[[rank]]
