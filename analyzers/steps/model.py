"""Steps of all ranks in one table, and the structs of `workbench.steps/1`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from analyzers import run, store
from analyzers.errors import InputError, WorkbenchError
from analyzers.report import Input

READER = "analyzers.steps.read"
APART = ("first", "compile", "gc", "eval", "checkpoint", "profile", "snapshot")
"""Tags of steps that do more than train; medians leave them out."""
OBSERVERS = ("profiler", "snapshot")
"""Phases that belong to our recorders."""


class RankSteps(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the steps without a tag. `phases` and `cpu` are seconds."""

    rank: int
    steps: int
    first_step: int
    last_step: int
    median_step_s: float
    phases: dict[str, float]
    cpu: dict[str, float]
    tokens_per_s: float | None
    peak_memory_bytes: int
    last_loss: float | None


class Straggler(msgspec.Struct, frozen=True, kw_only=True):
    """`lateness_s`: mean of what the rank costs a step in which it is late. `recurrence`: the share of such steps."""

    rank: int
    lateness_s: float
    recurrence: float
    cause: str
    first_step: int
    share: float


class StepsData(msgspec.Struct, frozen=True, kw_only=True):
    world_size: int
    ranks: list[RankSteps]
    stragglers: list[Straggler]
    first_nonfinite_step: int | None = None


@dataclass
class Steps:
    """One row a rank and step, in order of both.

    `table` has rank, step, start_ns, dur_s, tokens, loss, grad_norm, their states, memory_bytes, alloc_retries and
    `apart` (bool); `phases` and `cpu` have the same rows and seconds by phase; `seqs` the last collective by group.
    """

    table: pd.DataFrame
    phases: pd.DataFrame
    cpu: pd.DataFrame
    seqs: pd.DataFrame
    world_size: int
    device: str
    inputs: list[Input]
    torn: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> list[int]:
        return sorted(self.table["rank"].unique().tolist())

    @property
    def observed(self) -> pd.Series:
        """Seconds that the recorders took."""
        return self.phases[[name for name in OBSERVERS if name in self.phases]].sum(axis=1)


def load(artefacts: Sequence[run.Artefact], options: store.Options) -> Steps:
    """The steps in these logs.

    Raises:
        InputError: None of them holds a step.
    """
    logs = [a for a in artefacts if a.kind in (run.Kind.STEPS, run.Kind.STRUCTURED_LOG)]
    frames, problems, torn, headers = [], [], [], []
    for numbers, columns in store.load_set([a.path for a in logs], READER, options):
        if isinstance(columns, WorkbenchError):
            problems.append(columns.message)
            continue
        ranks = ranks_of([logs[n] for n in numbers], columns.meta["files"])
        frames.append(frame_of(columns, columns.meta, ranks))
        headers += [file.get("header", {}) for file in columns.meta["files"]]
        torn += [rank for rank, file in zip(ranks, columns.meta["files"], strict=True) if file.get("torn")]
        problems += [
            f"{logs[n].path}: {f['problem']}"
            for n, f in zip(numbers, columns.meta["files"], strict=True)
            if "problem" in f
        ]
    whole = pd.concat(frames) if frames else pd.DataFrame()
    if whole.empty:
        raise InputError(
            "no step in these logs", "; ".join(problems[:3]) or "the job wrote no line: did it finish a step?"
        )
    inputs = [a.given() for a in logs]
    return split(whole, headers, inputs, torn, problems)


def ranks_of(logs: Sequence[run.Artefact], files: Sequence[dict[str, Any]]) -> list[int]:
    """The rank of each file: as its header says, else as it is named."""
    headers = (file.get("header", {}).get("rank") for file in files)
    return [rank if isinstance(rank, int) else log.rank or 0 for rank, log in zip(headers, logs, strict=True)]


def frame_of(columns: Mapping[str, Any], meta: dict[str, Any], ranks: Sequence[int]) -> pd.DataFrame:
    """The columns of the reader as a table; `phase.`, `cpu.` and `seq.` columns get their names."""
    frame = pd.DataFrame({name: np.asarray(columns[name]) for name in columns})
    named = {f"{prefix}.{i}": f"{prefix}.{name}" for prefix, key in NAMED for i, name in enumerate(meta[key])}
    frame = frame.rename(columns=named)
    bits = sum(1 << i for i, tag in enumerate(meta["tags"]) if tag in APART)
    return frame.assign(
        rank=np.asarray(ranks, dtype=np.int64)[frame["file"]],
        apart=(frame["tags"] & bits) != 0,
        warmup=(frame["tags"] & sum(1 << i for i, tag in enumerate(meta["tags"]) if tag in ("first", "compile"))) != 0,
        tags=pd.Series(
            [[t for i, t in enumerate(meta["tags"]) if value >> i & 1] for value in frame["tags"]], dtype=object
        ),
        dur_s=frame["dur_ns"] / 1e9,
    )


NAMED = (("phase", "phases"), ("cpu", "phases"), ("seq", "groups"))


def split(
    whole: pd.DataFrame, headers: Sequence[dict[str, Any]], inputs: list[Input], torn: list[int], problems: list[str]
) -> Steps:
    """The wide table in its parts, a later file's step in place of an earlier one's."""
    whole = whole.sort_values(["rank", "step", "start_ns"], kind="stable")
    whole = whole.drop_duplicates(["rank", "step"], keep="last").reset_index(drop=True)
    sizes = [h["world_size"] for h in headers if isinstance(h.get("world_size"), int)]
    return Steps(
        table=whole.drop(columns=[c for c in whole if "." in str(c)]),
        phases=part(whole, "phase.") / 1e9,
        cpu=part(whole, "cpu.") / 1e9,
        seqs=part(whole, "seq."),
        world_size=max([*sizes, int(whole["rank"].max()) + 1]),
        device=next((str(h["device"]) for h in headers if "device" in h), ""),
        inputs=inputs,
        torn=sorted(torn),
        problems=problems,
    )


def part(whole: pd.DataFrame, prefix: str) -> pd.DataFrame:
    chosen = [c for c in whole if str(c).startswith(prefix)]
    return (
        whole[chosen].rename(columns=lambda name: str(name).removeprefix(prefix)).fillna(-1 if prefix == "seq." else 0)
    )


def summary(steps: Steps) -> list[RankSteps]:
    """One line a rank."""
    return [rank_summary(steps, rank) for rank in steps.ranks]


def rank_summary(steps: Steps, rank: int) -> RankSteps:
    mine = steps.table[steps.table["rank"] == rank]
    plain = mine[~mine["apart"]]
    rows = plain.index if len(plain) else mine.index
    median = float(steps.table.loc[rows, "dur_s"].median())
    losses = mine[mine["loss_state"] > 0]["loss"]
    tokens = float(steps.table.loc[rows, "tokens"].median())
    return RankSteps(
        rank=rank,
        steps=len(mine),
        first_step=int(mine["step"].min()),
        last_step=int(mine["step"].max()),
        median_step_s=median,
        phases=medians(steps.phases.loc[rows]),
        cpu=medians(steps.cpu.loc[rows]),
        tokens_per_s=tokens / median if tokens and median else None,
        peak_memory_bytes=int(mine["memory_bytes"].max()),
        last_loss=float(losses.iloc[-1]) if len(losses) and np.isfinite(losses.iloc[-1]) else None,
    )


def medians(frame: pd.DataFrame) -> dict[str, float]:
    return {str(name): float(value) for name, value in frame.median().items()}
