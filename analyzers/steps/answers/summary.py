"""Summarise the steps of each rank: medians over the steps that did nothing besides training."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from analyzers.columns import Floats, Integers, Mask
from analyzers.errors import InputError
from analyzers.steps.model import RankSteps
from analyzers.steps.table import Steps


def summary(steps: Steps, rank: int | None = None, step: int | None = None) -> list[RankSteps]:
    """Return one `RankSteps` per rank, over all of its steps or only over the given rank and step.

    Raises:
        InputError: The rank or step is not in the logs.
    """
    selected = np.ones(len(steps.table), dtype=bool)
    for name, wanted in (("rank", rank), ("step", step)):
        selected &= True if wanted is None else steps.table[name].to_numpy() == wanted
    if not selected.any():
        raise InputError("no step log has this rank and step", "leave out --rank or --step to see which there are")
    medians = Medians.of_rows(steps, _typical_rows(steps, selected))
    bounds = np.searchsorted(steps.table["rank"].to_numpy(), [*steps.ranks, steps.ranks[-1] + 1])
    rows = ((code, start + np.flatnonzero(selected[start:end])) for code, (start, end) in enumerate(pairwise(bounds)))
    return [_rank_summary(steps, medians, code, own) for code, own in rows if len(own)]


def _typical_rows(steps: Steps, selected: Mask) -> Mask:
    """Return a mask of the rows of `steps.table` for computing medians, among the rows in the mask `selected`.

    For each rank these are the steps that did nothing besides training. If there are none, all of its timed steps are
    used.
    """
    plain, codes = selected & steps.plain.to_numpy(), steps.rank_codes
    timed = selected & steps.table["dur_s"].notna().to_numpy()
    # A rank whose every step evaluates or saves would have no median at all.
    has_plain = np.bincount(codes[plain], minlength=len(steps.ranks)) > 0
    return np.where(has_plain[codes], plain, timed)


@dataclass(frozen=True)
class Medians:
    """Medians over the typical steps of each rank, as arrays with one value per rank in the order of `Steps.ranks`.

    `rows` is a mask of the rows of `Steps.table` that are typical steps. `step` is the duration, `mad` its median
    absolute deviation, and `phases` is {clock: {phase: time}}, all in seconds; `tokens` is the number of tokens per
    step.
    """

    rows: Mask
    step: Floats
    mad: Floats
    tokens: Floats
    phases: Mapping[str, Mapping[str, Floats]]

    @classmethod
    def of_rows(cls, steps: Steps, rows: Mask) -> "Medians":
        """Return the medians of each rank over the rows of `steps.table` in the mask `rows`.

        They are computed for all ranks at once, because a group-by per rank is far slower.
        """
        times = steps.table["dur_s"].to_numpy()
        step = steps.by_rank(times, rows)
        clocks = {"phases": steps.phases, "cpu": steps.cpu, "device": steps.device}
        return cls(
            rows,
            step,
            steps.by_rank(np.abs(times - step[steps.rank_codes]), rows),
            steps.by_rank(steps.table["tokens"], rows),
            {clock: {name: steps.by_rank(frame[name], rows) for name in frame} for clock, frame in clocks.items()},
        )


def _rank_summary(steps: Steps, medians: Medians, code: int, rows: Integers) -> RankSteps:
    """Return the summary of one rank: `code` is its index in `steps.ranks`, `rows` are its selected row numbers.

    `medians` has the medians of all ranks over their typical steps.
    """
    column = {
        name: steps.table[name].to_numpy()[rows] for name in ("rank", "step", "memory_bytes", "loss", "loss_state")
    }
    times = steps.table["dur_s"].to_numpy()[rows[medians.rows[rows]]]
    losses = column["loss"][column["loss_state"] > 0]
    median, tokens = (float(values[code]) if len(times) else None for values in (medians.step, medians.tokens))
    by_clock = {
        clock: {name: float(values[code]) for name, values in named.items()} if len(times) else {}
        for clock, named in medians.phases.items()
    }
    return RankSteps(
        rank=int(column["rank"][0]),
        steps=len(rows),
        first_step=int(column["step"][0]),
        last_step=int(column["step"][-1]),
        median_step_s=median,
        mad_s=float(medians.mad[code]) if len(times) else None,
        p95_step_s=float(np.quantile(times, 0.95)) if len(times) else None,
        **by_clock,
        tokens_per_s=tokens / median if tokens and median else None,
        peak_memory_bytes=int(column["memory_bytes"].max()),
        last_loss=float(losses[-1]) if len(losses) and np.isfinite(losses[-1]) else None,
    )
