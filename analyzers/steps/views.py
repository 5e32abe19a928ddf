"""Build tables about the steps for the user interfaces, which stay small for any number of ranks and steps.

| view | one row | columns |
|---|---|---|
| `series` | a rank and step | all values, unreduced |
| `clock` | a step of one rank | when it began and ended, Unix ns |
| `phases` | a rank and step | seconds by phase, unreduced |
| `sparkline` | a bin of steps | step times over ranks and steps, loss, the latest rank and its lateness |
| `phase_stack` | a bin of steps | mean seconds by phase |
| `heat` | a bin of ranks | the largest lateness of one of them in each bin of steps |
| `goodput` | a rank | seconds by part of the wall time |

A bin holds neighbouring steps (or ranks); its name is the first of them. Bins keep maxima, so that outliers stay
visible.
"""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd

from analyzers import run, store
from analyzers.columns import Integers
from analyzers.steps.goodput import goodput_by_rank
from analyzers.steps.lateness import Lateness, lateness
from analyzers.steps.loading import load
from analyzers.steps.reading.log_lines import FINITE
from analyzers.steps.table import RECORDER_PHASES, Steps

_BINS = 200
_RANK_ROWS = 64
NOT_TRAINING = ("residual", *RECORDER_PHASES)
"""The columns of `phases` that are no phase of the training: time in no phase, and time of this project's recorders."""


def opened(artefacts: Sequence[run.Artefact], options: store.Options | None) -> Steps:
    """Return the steps in the logs; the last two runs that were read are kept in memory.

    The reason: a page of a user interface asks for several tables of the same run.
    """
    return _cached_load(tuple(artefacts), options or store.Options())


@lru_cache(maxsize=2)
def _cached_load(artefacts: tuple[run.Artefact, ...], options: store.Options) -> Steps:
    return load(artefacts, options)


def series(artefacts: Sequence[run.Artefact], options: store.Options | None = None) -> pd.DataFrame:
    """Return a table of all steps: rank, step, dur_s, loss, grad_norm, memory_bytes, tokens_per_s, tags, tagged.

    Further numbers in the logs of other trainers follow as columns, such as `learning_rate`.
    """
    steps = opened(artefacts, options)
    table, numbers = steps.table, steps.numbers
    rate = (table["tokens"] / table["dur_s"]).where(table["dur_s"] > 0)
    if "tokens_per_s" in numbers:
        rate = numbers["tokens_per_s"].fillna(rate)
    columns = ["rank", "step", "dur_s", "loss", "grad_norm", "memory_bytes", "tokens_per_s", "tags", "tagged"]
    others = numbers[[name for name in numbers if name not in columns]]
    return pd.concat([table.assign(tokens_per_s=rate)[columns], others], axis=1)


def clock(
    artefacts: Sequence[run.Artefact], options: store.Options | None = None, rank: int | None = None
) -> pd.DataFrame:
    """Return the start and end of each step of a rank (by default the first): step, start_ns, end_ns (Unix ns)."""
    steps = opened(artefacts, options)
    table = steps.table[steps.table["rank"] == (steps.ranks[0] if rank is None else rank)]
    table = table[(table["start_ns"] > 0) & (table["dur_ns"] >= 0)]
    return pd.DataFrame(
        {"step": table["step"], "start_ns": table["start_ns"], "end_ns": table["start_ns"] + table["dur_ns"]}
    )


def phases(
    artefacts: Sequence[run.Artefact], options: store.Options | None = None, rank: int | None = None
) -> pd.DataFrame:
    """Return the seconds of each phase (columns) in each step, indexed by (rank, step), of one rank or of all.

    The column `residual` is the time of the step outside of phases.
    """
    steps = opened(artefacts, options)
    rows = np.ones(len(steps.table), dtype=bool) if rank is None else (steps.table["rank"] == rank).to_numpy()
    table = pd.DataFrame({name: steps.phases.at(name, rows) for name in steps.phases})
    table["residual"] = steps.table.loc[rows, "residual_ns"].to_numpy() / 1e9
    table.index = pd.MultiIndex.from_frame(steps.table.loc[rows, ["rank", "step"]])
    return table


def sparkline(
    artefacts: Sequence[run.Artefact], options: store.Options | None = None, bins: int = _BINS
) -> pd.DataFrame:
    """Return an overview of the run in at most `bins` bins of steps, indexed by the first step of each bin.

    Columns: `steps` (how many are in the bin), `lowest_s`, `median_s`, `highest_s` (of step times), `loss` (mean),
    `loss_highest`, `grad_norm_highest`, `last_rank` (the latest rank, None if none was late) and its `lateness_s`.
    """
    steps = opened(artefacts, options)
    # All steps, also tagged ones: a face shows what happened, medians are for the table.
    times = steps.grid(steps.table["dur_s"])
    numbers = _bin_numbers(len(times), bins)
    by_bin = (
        times.min(axis=1).groupby(numbers),
        times.median(axis=1).groupby(numbers),
        times.max(axis=1).groupby(numbers),
    )
    loss, norm = (_mean_over_ranks(steps, name).groupby(numbers) for name in ("loss", "grad_norm"))
    table = pd.DataFrame(
        {
            "steps": by_bin[0].size(),
            "lowest_s": by_bin[0].min(),
            "median_s": by_bin[1].median(),
            "highest_s": by_bin[2].max(),
            "loss": loss.mean(),
            "loss_highest": loss.max(),
            "grad_norm_highest": norm.max(),
            **_last_in_bins(steps, lateness(steps), numbers),
        }
    )
    return named(table, times.index, numbers)


def _last_in_bins(steps: Steps, late: Lateness, numbers: Integers) -> dict[str, "pd.Series[float]"]:
    """Return two series by bin of steps: the rank with the largest lateness in the bin's steps, and this lateness (s).

    `late` has the lateness of each rank in each step, `numbers` the bin index of each step. The keys of the result are
    `last_rank` (missing if no rank was late) and `lateness_s`.
    """
    # 0 if the lateness is not known, so that no rank is named.
    excess = late.excess.reindex(steps.steps).to_numpy() * late.is_known
    latest = pd.Series(np.nanmax(excess, axis=1, initial=0.0))
    step_rows = latest.groupby(numbers).idxmax().to_numpy()
    last = [late.excess.columns[int(np.nanargmax(excess[row]))] if latest[row] > 0 else None for row in step_rows]
    return {"last_rank": pd.Series(last, dtype="Int64"), "lateness_s": latest.groupby(numbers).max()}


def _mean_over_ranks(steps: Steps, name: str) -> "pd.Series[float]":
    known = (steps.table[f"{name}_state"] == FINITE).to_numpy()
    return steps.grid(steps.table[name], known).mean(axis=1)


def phase_stack(
    artefacts: Sequence[run.Artefact],
    options: store.Options | None = None,
    rank: int | None = None,
    bins: int = _BINS,
) -> pd.DataFrame:
    """Return mean seconds by phase (columns) in each bin of steps, of one rank or of all.

    The longest phase comes first, `residual` (outside of phases) last.
    """
    table = phases(artefacts, options, rank)
    by_step = table.groupby(level="step").mean()
    numbers = _bin_numbers(len(by_step), bins)
    means = by_step.groupby(numbers).mean()
    order = means.drop(columns="residual").sum().sort_values(ascending=False).index
    return named(means[[*order, "residual"]], by_step.index, numbers)


def heat(
    artefacts: Sequence[run.Artefact],
    options: store.Options | None = None,
    rows: int = _RANK_ROWS,
    bins: int = _BINS,
) -> pd.DataFrame:
    """Return the largest lateness in seconds, as bins of ranks (rows) x bins of steps (columns).

    The result is empty if the lateness is not known from the logs.
    """
    late = lateness(opened(artefacts, options))
    if not late.is_known:
        return pd.DataFrame()
    excess = late.excess.T
    rank_bins, step_bins = _bin_numbers(len(excess), rows), _bin_numbers(excess.shape[1], bins)
    by_ranks = named(excess.groupby(rank_bins).max(), excess.index, rank_bins)
    return named(by_ranks.T.groupby(step_bins).max(), excess.columns, step_bins).T


def goodput(artefacts: Sequence[run.Artefact], options: store.Options | None = None) -> pd.DataFrame:
    """Return the wall time in seconds by part, such as `productive` (columns), and rank (rows).

    Every row has the same sum. Parts that are zero on all ranks are left out.
    """
    steps = opened(artefacts, options)
    table = goodput_by_rank(steps, lateness(steps)) / 1e9
    return table.loc[:, table.any()]


def _bin_numbers(count: int, bins: int) -> Integers:
    """Return, for each of `count` items in order, the index of its bin.

    There are at most `bins` bins of equal width.
    """
    return np.arange(count) // max(1, -(-count // bins))


def named(table: pd.DataFrame, names: pd.Index, numbers: Integers) -> pd.DataFrame:
    """Return a table with a row per bin, whose rows are named after the first item of each bin."""
    firsts = np.searchsorted(numbers, table.index)
    table.index = names[firsts].rename(names.name)
    return table
