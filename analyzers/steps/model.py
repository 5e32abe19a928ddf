"""Steps of all ranks in one table, and the structs of `workbench.steps/1`."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from analyzers.errors import InputError
from analyzers.report import Input
from analyzers.steps.reading.log_lines import Array, Header, narrowed
from analyzers.steps.robust_statistics import middles

APART = ("first", "compile", "gc", "eval", "checkpoint", "profile", "snapshot")
"""Tags of steps that do more than train; medians leave them out."""
OBSERVERS = ("profiler", "snapshot")
"""Phases that belong to our recorders."""


class RankSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the steps without a tag, in seconds. `mad_s`: median distance of a step from the median."""

    rank: int
    steps: int
    first_step: int
    last_step: int
    median_step_s: float | None
    mad_s: float | None
    p95_step_s: float | None
    phases: dict[str, float]
    cpu: dict[str, float]
    device: dict[str, float]
    tokens_per_s: float | None
    peak_memory_bytes: int
    last_loss: float | None


class Apart(msgspec.Struct, frozen=True, kw_only=True):
    """Steps with a tag, of all ranks: how many, and their median in seconds."""

    steps: int
    median_step_s: float | None


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that makes the others wait.

    `lateness_s`: mean of what it costs a step in which it is late. `recurrence`: the share of such steps. `lost_s`:
    what it costs a step on average over all steps; `share`: of all time. `pattern`: `persistent` (in nearly all steps
    since `first_step`), `recurring` (now and then), `rotating` (in turns with others), `host` (its whole machine is).
    """

    rank: int
    lateness_s: float
    recurrence: float
    cause: str
    first_step: int
    last_step: int
    steps_late: int
    lost_s: float
    share: float
    pattern: str


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """Steps in which all ranks lost time together: `lost_s` over all of them, `share` of the time of plain steps."""

    cause: str
    steps: int
    first_step: int
    last_step: int
    lost_s: float
    share: float


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The level of the step time, in seconds, before and after `step`; `phases`: by how much each phase changed.

    A `drift` goes on from `step` to the last one, a `step` happens at once.
    """

    kind: str
    step: int
    before_s: float
    after_s: float
    phases: dict[str, float]


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """Where the time of a run went: `parts` add up to `wall_ns`, the time from its first start to its last step's end,
    as the mean over its ranks. `productive`: the share of the part of that name.
    """

    started_ns: int
    wall_ns: int
    parts: dict[str, int]
    productive: float


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened to the loss or the gradient norm at `step`: `nonfinite`, `loss_spike`, `loss_rise`,
    `grad_norm_jump` or `plateau`. `until`: the step at which it was over.
    """

    kind: str
    step: int
    value: float | None = None
    before: float | None = None
    until: int | None = None


class StepsData(msgspec.Struct, frozen=True, kw_only=True):
    world_size: int
    ranks: list[RankSteps]
    stragglers: list[Straggler]
    apart: dict[str, Apart] = {}
    stalls: list[Stall] = []
    changes: list[Change] = []
    events: list[Event] = []
    goodput: Goodput | None = None
    first_nonfinite_step: int | None = None


@dataclass(frozen=True)
class Start:
    """A process that began to write a log; its rows bear the number `session`."""

    rank: int
    session: int
    started_ns: int
    host: str

    @classmethod
    def of(cls, rank: int, session: int, header: Header) -> "Start":
        """What a header tells."""
        started = header.get("started_ns")
        return cls(rank, session, started if isinstance(started, int) else 0, str(header.get("host", "")))


class Durations:
    """Whole ns of each row by name. Only what is asked for becomes seconds: all of them would take twice the memory."""

    def __init__(self, ns: pd.DataFrame) -> None:
        self._ns = ns

    def __iter__(self) -> Iterator[str]:
        return map(str, self._ns)

    def __contains__(self, name: object) -> bool:
        return name in self._ns

    def __len__(self) -> int:
        return len(self._ns.columns)

    def __getitem__(self, name: str) -> "pd.Series[float]":
        return self._ns[name] / 1e9

    def at(self, name: str, rows: Array | slice) -> Array:
        """The seconds of some rows."""
        found: Array = self._ns[name].to_numpy()[rows] / 1e9
        return found

    def total(self, names: Iterable[str]) -> "pd.Series[float]":
        """The seconds of several together; those that are not there took no time."""
        return sum((self[name] for name in names if name in self), pd.Series(0.0, index=self._ns.index))


@dataclass
class Steps:
    """One row a rank and step, in order of both.

    `table` has rank, step, session, covers, start_ns, dur_ns (-1: unknown), dur_s (NaN), residual_ns, tokens, loss,
    grad_norm and their states, memory_bytes, alloc_retries, tags (joined by commas), `apart` and `warmup` (bool).
    `phases` (wall clock), `cpu` (processor) and `device` have the same rows and the time by phase; `seqs` the last
    collective by group. `redone`: rows of steps that a later attempt did again.
    """

    table: pd.DataFrame
    phases: Durations
    cpu: Durations
    device: Durations
    seqs: pd.DataFrame
    redone: pd.DataFrame
    starts: list[Start]
    world_size: int
    on: str
    inputs: list[Input]
    torn: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @cached_property
    def ranks(self) -> list[int]:
        """In order."""
        return [int(rank) for rank in self._places[0]]

    @cached_property
    def steps(self) -> list[int]:
        """All that some rank finished, in order."""
        return [int(step) for step in self._places[1]]

    @property
    def codes(self) -> Array:
        """The place of each row's rank in `ranks`."""
        return self._places[2]

    @cached_property
    def _places(self) -> tuple[Array, Array, Array, Array]:
        """Ranks and steps, and the number of each row's rank and step among them."""
        ranks, rank_codes = np.unique(self.table["rank"].to_numpy(), return_inverse=True)
        steps, step_codes = np.unique(self.table["step"].to_numpy(), return_inverse=True)
        return ranks, steps, narrowed(rank_codes), narrowed(step_codes)

    def grid(self, values: Any, usable: Any = None) -> pd.DataFrame:
        """A row a step, a column a rank; NaN where a rank has no such row."""
        ranks, steps, _, _ = self._places
        index, columns = pd.Index(steps, name="step"), pd.Index(ranks, name="rank")
        return pd.DataFrame(self.cells(values, usable), index=index, columns=columns)

    def cells(self, values: Any, usable: Any = None) -> Array:
        """The same without names."""
        ranks, steps, rank_codes, step_codes = self._places
        filled = np.full((len(steps), len(ranks)), np.nan)
        values = np.asarray(values, dtype=float)
        chosen = slice(None) if usable is None else np.asarray(usable)
        filled[step_codes[chosen], rank_codes[chosen]] = values[chosen]
        return filled

    def by_rank(self, values: Any, usable: Array) -> Array:
        """The median of each rank's rows, NaN where it has none."""
        return middles(self.cells(values, usable))

    def places_of(self, steps: pd.Index) -> Array:
        """The rows of a grid that are these steps."""
        return np.searchsorted(self._places[1], steps.to_numpy())

    @cached_property
    def plain(self) -> "pd.Series[bool]":
        """Rows of steps that only trained and whose time is known."""
        return ~self.table["apart"] & self.table["dur_s"].notna()

    @cached_property
    def observed(self) -> "pd.Series[float]":
        """Seconds that the recorders took."""
        return self.phases.total(OBSERVERS)


def summary(steps: Steps, rank: int | None = None, step: int | None = None) -> list[RankSteps]:
    """One line a rank, of all steps or of one.

    Raises:
        InputError: There is no such rank or step.
    """
    chosen = np.ones(len(steps.table), dtype=bool)
    for name, wanted in (("rank", rank), ("step", step)):
        chosen &= True if wanted is None else steps.table[name].to_numpy() == wanted
    if not chosen.any():
        raise InputError("nothing of this rank and step", "leave out --rank or --step to see what there is")
    middle = Middles.of(steps, typical(steps, chosen))
    bounds = np.searchsorted(steps.table["rank"].to_numpy(), [*steps.ranks, steps.ranks[-1] + 1])
    rows = ((place, a + np.flatnonzero(chosen[a:b])) for place, (a, b) in enumerate(pairwise(bounds)))
    return [rank_summary(steps, middle, place, mine) for place, mine in rows if len(mine)]


def typical(steps: Steps, chosen: Array) -> Array:
    """Of the chosen rows those of plain steps; of a rank without any all whose time is known."""
    plain, codes = chosen & steps.plain.to_numpy(), steps.codes
    known = chosen & steps.table["dur_s"].notna().to_numpy()
    has_plain = np.bincount(codes[plain], minlength=len(steps.ranks)) > 0
    return np.where(has_plain[codes], plain, known)


@dataclass(frozen=True)
class Middles:
    """Medians of typical rows, a value a rank in order: seconds, and tokens a step."""

    rows: Array
    step: Array
    mad: Array
    tokens: Array
    phases: dict[str, dict[str, Array]]

    @classmethod
    def of(cls, steps: Steps, rows: Array) -> "Middles":
        times = steps.table["dur_s"].to_numpy()
        step = steps.by_rank(times, rows)
        frames = {"phases": steps.phases, "cpu": steps.cpu, "device": steps.device}
        return cls(
            rows,
            step,
            steps.by_rank(np.abs(times - step[steps.codes]), rows),
            steps.by_rank(steps.table["tokens"], rows),
            {kind: {name: steps.by_rank(frame[name], rows) for name in frame} for kind, frame in frames.items()},
        )


def rank_summary(steps: Steps, middle: Middles, place: int, rows: Array) -> RankSteps:
    """Of rows of one rank, the one at a place in order."""
    column = {
        name: steps.table[name].to_numpy()[rows] for name in ("rank", "step", "memory_bytes", "loss", "loss_state")
    }
    times = steps.table["dur_s"].to_numpy()[rows[middle.rows[rows]]]
    losses = column["loss"][column["loss_state"] > 0]
    median, tokens = (float(values[place]) if len(times) else None for values in (middle.step, middle.tokens))
    parts = {
        kind: {name: float(values[place]) for name, values in named.items()} if len(times) else {}
        for kind, named in middle.phases.items()
    }
    return RankSteps(
        rank=int(column["rank"][0]),
        steps=len(rows),
        first_step=int(column["step"][0]),
        last_step=int(column["step"][-1]),
        median_step_s=median,
        mad_s=float(middle.mad[place]) if len(times) else None,
        p95_step_s=float(np.quantile(times, 0.95)) if len(times) else None,
        **parts,
        tokens_per_s=tokens / median if tokens and median else None,
        peak_memory_bytes=int(column["memory_bytes"].max()),
        last_loss=float(losses[-1]) if len(losses) and np.isfinite(losses[-1]) else None,
    )
