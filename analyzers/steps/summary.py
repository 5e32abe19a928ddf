"""Summarise the steps of each rank, and collect all answers about a run."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from analyzers import store
from analyzers.columns import Floats, Integers, Mask
from analyzers.errors import InputError
from analyzers.steps.goodput import goodput
from analyzers.steps.lateness import Lateness
from analyzers.steps.losses import events, first_nonfinite
from analyzers.steps.model import RankSteps, StepsData, TaggedSteps
from analyzers.steps.step_times import global_stalls, single_stalls, step_time_changes
from analyzers.steps.stragglers import stragglers
from analyzers.steps.table import NOT_PLAIN, Steps


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


# Count the steps with each tag, such as checkpoint or compile, and compute their median duration.
#
# A tagged step did something besides training.


def tagged_steps(steps: Steps) -> dict[str, TaggedSteps]:
    """Return, for each tag that occurs, the number of its steps and their median duration, in the order of NOT_PLAIN.

    A step with two tags counts for both.
    """
    tags = steps.table["tags"]
    counted = {}
    for tag in NOT_PLAIN:
        # Rows hold joined tags ("first,gc"); there are few different texts, so they are searched instead of the rows.
        texts = [text for text in tags.unique() if tag in text.split(",")]
        if texts:
            rows = steps.table[tags.isin(texts)]
            median = rows["dur_s"].median()
            counted[tag] = TaggedSteps(
                steps=rows["step"].nunique(), median_step_s=None if np.isnan(median) else float(median)
            )
    return counted


def answer_all(steps: Steps, late: Lateness, options: store.Options | None = None) -> StepsData:
    """Return all results from the step logs of a run: ranks, stragglers, stalls, changes, losses, goodput.

    `late` is how late each rank is in each step. If `options` select a rank or a step, only `StepsData.ranks` is
    restricted to them; all other fields cover the whole run.

    Raises:
        InputError: There is no such rank or step.
    """
    options = options or store.Options()
    nonfinite = first_nonfinite(steps)
    return StepsData(
        world_size=steps.world_size,
        ranks=summary(steps, options.rank, options.step),
        stragglers=stragglers(steps, late),
        tagged=tagged_steps(steps),
        stalls=global_stalls(steps),
        changes=step_time_changes(steps),
        events=events(steps),
        goodput=goodput(steps, late),
        first_nonfinite_step=nonfinite.step if nonfinite else None,
        long_steps=single_stalls(steps, late) or msgspec.UNSET,
        logs=steps.logs or msgspec.UNSET,
    )
