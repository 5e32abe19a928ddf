"""What faces draw of the steps: small tables, however many ranks and steps there are.

| view | one row | columns |
|---|---|---|
| `series` | a rank and step | everything, unreduced |
| `clock` | a step of one rank | when it began and ended, Unix ns |
| `phases` | a rank and step | seconds by phase, unreduced |
| `sparkline` | a bin of steps | step times over ranks and steps, loss, who was last and by how much |
| `phase_stack` | a bin of steps | mean seconds by phase |
| `heat` | a bin of ranks | the most that one of them was late in each bin of steps |
| `goodput` | a rank | seconds by part of the wall time |

Bins hold neighbouring steps (or ranks) and are named by the first one. What stands out survives: bins keep maxima.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from analyzers import run, store
from analyzers.steps.answers.goodput import goodput_by_rank
from analyzers.steps.answers.lateness import Lateness, lateness
from analyzers.steps.loading import load
from analyzers.steps.reading.log_lines import FINITE, Array
from analyzers.steps.table import Steps

BINS = 200
RANK_ROWS = 64


def opened(artefacts: Sequence[run.Artefact], options: store.Options | None) -> Steps:
    """The steps, kept for the views of one page."""
    return kept(tuple(artefacts), options or store.Options())


@lru_cache(maxsize=2)
def kept(artefacts: tuple[run.Artefact, ...], options: store.Options) -> Steps:
    return load(artefacts, options)


def series(artefacts: Sequence[run.Artefact], options: store.Options | None = None) -> pd.DataFrame:
    """One row a rank and step: rank, step, dur_s, loss, grad_norm, memory_bytes, tokens_per_s, tags, tagged."""
    table = opened(artefacts, options).table
    rate = (table["tokens"] / table["dur_s"]).where(table["dur_s"] > 0)
    columns = ["rank", "step", "dur_s", "loss", "grad_norm", "memory_bytes", "tokens_per_s", "tags", "tagged"]
    return table.assign(tokens_per_s=rate)[columns]


def clock(
    artefacts: Sequence[run.Artefact], options: store.Options | None = None, rank: int | None = None
) -> pd.DataFrame:
    """When each step of a rank (by default of the first) was, by the wall clock. Columns: step, start_ns, end_ns."""
    steps = opened(artefacts, options)
    table = steps.table[steps.table["rank"] == (steps.ranks[0] if rank is None else rank)]
    table = table[(table["start_ns"] > 0) & (table["dur_ns"] >= 0)]
    return pd.DataFrame(
        {"step": table["step"], "start_ns": table["start_ns"], "end_ns": table["start_ns"] + table["dur_ns"]}
    )


def phases(
    artefacts: Sequence[run.Artefact], options: store.Options | None = None, rank: int | None = None
) -> pd.DataFrame:
    """Seconds by phase, one row a step (of one rank, or of all), indexed by (rank, step); `residual` is the rest."""
    steps = opened(artefacts, options)
    mine = np.ones(len(steps.table), dtype=bool) if rank is None else (steps.table["rank"] == rank).to_numpy()
    table = pd.DataFrame({name: steps.phases.at(name, mine) for name in steps.phases})
    table["residual"] = steps.table.loc[mine, "residual_ns"].to_numpy() / 1e9
    table.index = pd.MultiIndex.from_frame(steps.table.loc[mine, ["rank", "step"]])
    return table


def sparkline(
    artefacts: Sequence[run.Artefact], options: store.Options | None = None, bins: int = BINS
) -> pd.DataFrame:
    """The run at a glance, indexed by the first step of a bin: `steps` in it, `lowest_s`, `median_s`, `highest_s`,
    `loss` (mean), `loss_highest`, `grad_norm_highest`, `last_rank` (None where nobody was late) and its `lateness_s`.
    """
    steps = opened(artefacts, options)
    times = steps.grid(steps.table["dur_s"])
    numbers = numbers_of(len(times), bins)
    by_bin = (
        times.min(axis=1).groupby(numbers),
        times.median(axis=1).groupby(numbers),
        times.max(axis=1).groupby(numbers),
    )
    loss, norm = (mean_by_step(steps, name).groupby(numbers) for name in ("loss", "grad_norm"))
    table = pd.DataFrame(
        {
            "steps": by_bin[0].size(),
            "lowest_s": by_bin[0].min(),
            "median_s": by_bin[1].median(),
            "highest_s": by_bin[2].max(),
            "loss": loss.mean(),
            "loss_highest": loss.max(),
            "grad_norm_highest": norm.max(),
            **last_in_bins(steps, lateness(steps), numbers),
        }
    )
    return named(table, times.index, numbers)


def last_in_bins(steps: Steps, late: Lateness, numbers: Array) -> dict[str, "pd.Series[float]"]:
    """Who came last in the step of each bin in which somebody was latest, and by how much."""
    excess = late.excess.reindex(steps.steps).to_numpy() * late.is_known
    worst = pd.Series(np.nanmax(excess, axis=1, initial=0.0))
    at = worst.groupby(numbers).idxmax().to_numpy()
    who = [late.excess.columns[int(np.nanargmax(excess[row]))] if worst[row] > 0 else None for row in at]
    return {"last_rank": pd.Series(who, dtype="Int64"), "lateness_s": worst.groupby(numbers).max()}


def mean_by_step(steps: Steps, name: str) -> "pd.Series[float]":
    known = (steps.table[f"{name}_state"] == FINITE).to_numpy()
    return steps.grid(steps.table[name], known).mean(axis=1)


def phase_stack(
    artefacts: Sequence[run.Artefact],
    options: store.Options | None = None,
    rank: int | None = None,
    bins: int = BINS,
) -> pd.DataFrame:
    """Mean seconds by phase in each bin, of one rank or of all, the phase that takes most first, then `residual`."""
    table = phases(artefacts, options, rank)
    by_step = table.groupby(level="step").mean()
    numbers = numbers_of(len(by_step), bins)
    found = by_step.groupby(numbers).mean()
    order = found.drop(columns="residual").sum().sort_values(ascending=False).index
    return named(found[[*order, "residual"]], by_step.index, numbers)


def heat(
    artefacts: Sequence[run.Artefact],
    options: store.Options | None = None,
    rows: int = RANK_ROWS,
    bins: int = BINS,
) -> pd.DataFrame:
    """Seconds that ranks were late: a row a bin of ranks, a column a bin of steps; empty where the logs cannot tell."""
    late = lateness(opened(artefacts, options))
    if not late.is_known:
        return pd.DataFrame()
    excess = late.excess.T
    of_ranks, of_steps = numbers_of(len(excess), rows), numbers_of(excess.shape[1], bins)
    folded = named(excess.groupby(of_ranks).max(), excess.index, of_ranks)
    return named(folded.T.groupby(of_steps).max(), excess.columns, of_steps).T


def goodput(artefacts: Sequence[run.Artefact], options: store.Options | None = None) -> pd.DataFrame:
    """Seconds of wall time by part, a row a rank; all rows have the same sum. Parts that took no time are left out."""
    steps = opened(artefacts, options)
    table = goodput_by_rank(steps, lateness(steps)) / 1e9
    return table.loc[:, table.any()]


def numbers_of(count: int, bins: int) -> Array:
    """The bin of each of so many rows, all bins equally wide."""
    return np.arange(count) // max(1, -(-count // bins))


def named(table: pd.DataFrame, names: pd.Index, numbers: Array) -> pd.DataFrame:
    """The bins by the first name in each."""
    firsts = np.searchsorted(numbers, table.index)
    table.index = names[firsts].rename(names.name)
    return table
