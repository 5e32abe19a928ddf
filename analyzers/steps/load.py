"""Logs of one run -> `Steps`: the most telling source counts, the others fill in what it lacks."""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from analyzers import run, store
from analyzers.errors import InputError, WorkbenchError
from analyzers.steps.jsonl import STARTS_AT_MOST
from analyzers.steps.lines import ABSENT, Array, Header
from analyzers.steps.model import APART, Start, Steps

READER = "analyzers.steps.read"
SHARED_BYTES = 32 << 20
"""Logs larger than this together are read by several children."""
NAMED = (("phase", "phases"), ("cpu", "phases"), ("device", "phases"), ("seq", "groups"))
RANKS_AT_MOST = 1 << 20
FILLED = ("loss", "grad_norm")
SIZES = ("memory_bytes", "reserved_bytes")


class Source:
    """What the files of one kind hold."""

    def __init__(self) -> None:
        self.frames: list[pd.DataFrame] = []
        self.starts: list[Start] = []
        self.headers: list[Header] = []
        self.read: list[run.Artefact] = []
        self.torn: list[int] = []
        self.problems: list[str] = []

    @property
    def empty(self) -> bool:
        """Whether no step came of it."""
        return not any(len(frame) for frame in self.frames)

    def add(self, logs: Sequence[run.Artefact], columns: store.Columns) -> None:
        """Take in a chunk of logs."""
        files = columns.meta["files"]
        ranks = ranks_of(logs, files)
        before = len(self.read) * STARTS_AT_MOST
        self.frames.append(frame_of(columns, columns.meta, ranks, before))
        self.read += logs
        for number, (log, rank, file) in enumerate(zip(logs, ranks, files, strict=True)):
            first = before + number * STARTS_AT_MOST
            self.headers += file["headers"]
            self.starts += [Start.of(rank, first + n, header) for n, header in enumerate(file["headers"])]
            self.torn += [rank] if file.get("torn") else []
            self.problems += problems_of(log, file)

    def whole(self) -> pd.DataFrame:
        """All rows; phases that a chunk lacks took no time."""
        frame = self.frames[0] if len(self.frames) == 1 else pd.concat(self.frames, ignore_index=True)
        named = [c for c in map(str, frame) if "." in c]
        if len(self.frames) > 1 and frame[named].isna().to_numpy().any():
            frame = frame.fillna({c: -1 if c.startswith("seq.") else 0 for c in named})
        return frame


def problems_of(log: run.Artefact, file: dict[str, Any]) -> list[str]:
    if "problem" in file:
        return [f"{log.path}: {file['problem']}"]
    count = file["damaged"]
    return [f"{log.path}: {count} damaged {'line' if count == 1 else 'lines'} left out"] if count else []


def load(artefacts: Sequence[run.Artefact], options: store.Options) -> Steps:
    """The steps in these logs.

    Raises:
        InputError: None of them holds a step.
    """
    sources: list[Source] = []
    problems: list[str] = []
    for kind in run.TIMED:
        if (logs := [a for a in artefacts if a.kind is kind]) and not enough(sources):
            source = read(logs, options)
            problems += source.problems
            sources += [] if source.empty else [source]
    if not sources:
        why = "; ".join(problems[:3]) or "the job wrote no line: did it finish a step?"
        raise InputError("no step in these logs", why)
    first, *others = sources
    frame = first.whole()
    for other in others:
        frame = filled(frame, other.whole())
    return steps_of(first, frame, [a.given() for source in sources for a in source.read], problems)


def enough(sources: Sequence[Source]) -> bool:
    """Whether the sources so far tell of time and of loss; what comes after them is coarser."""
    return any((frame["loss_state"] != ABSENT).any() for source in sources for frame in source.frames)


def read(logs: Sequence[run.Artefact], options: store.Options) -> Source:
    """All logs of one kind."""
    source = Source()
    for chunk in chunks(logs, options.jobs):
        for numbers, columns in store.load_set([log.path for log in chunk], READER, options):
            if isinstance(columns, WorkbenchError):
                source.problems.append(columns.message)
            else:
                source.add([chunk[n] for n in numbers], columns)
    return source


def chunks(logs: Sequence[run.Artefact], jobs: int) -> list[Sequence[run.Artefact]]:
    count = max(1, min(jobs, sum(log.bytes for log in logs) // SHARED_BYTES, len(logs)))
    bounds = [len(logs) * i // count for i in range(count + 1)]
    return [logs[a:b] for a, b in pairwise(bounds)]


def ranks_of(logs: Sequence[run.Artefact], files: Sequence[dict[str, Any]]) -> list[int]:
    """The rank of each file: as its header says, else as it or its folder is named."""
    headers = (next((h.get("rank") for h in file["headers"]), None) for file in files)
    return [rank if is_rank(rank) else named_rank(log) for rank, log in zip(headers, logs, strict=True)]


def named_rank(log: run.Artefact) -> int:
    if is_rank(log.rank):
        return log.rank
    folder = log.path.parent.name
    return int(folder) if log.kind is run.Kind.LOG and re.fullmatch(r"\d{1,5}", folder) else 0


def is_rank(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and 0 <= value < RANKS_AT_MOST


def frame_of(
    columns: Mapping[str, Array], meta: Mapping[str, Any], ranks: Sequence[int], before: int = 0
) -> pd.DataFrame:
    """The columns of a `lines.Table` as a table: numbered columns get their names, times become seconds.

    Sessions are numbered from `before` on.
    """
    names = {f"{prefix}.{i}": f"{prefix}.{name}" for prefix, key in NAMED for i, name in enumerate(meta[key])}
    bits = {tag: 1 << i for i, tag in enumerate(meta["tags"])}
    data = {names.get(name, name): np.asarray(columns[name]) for name in columns if name not in ("file", "attempt")}
    data["session"] = before + np.asarray(columns["file"]) * STARTS_AT_MOST + columns["attempt"]
    owners = np.asarray(ranks, dtype=np.int64)[columns["file"]] if ranks else data["rank"]
    data["rank"] = np.where(data["rank"] >= 0, data["rank"], owners)
    data["apart"] = (data["tags"] & sum(bits.get(tag, 0) for tag in APART)) != 0
    data["warmup"] = (data["tags"] & (bits.get("first", 0) | bits.get("compile", 0))) != 0
    data["tags"] = named_tags(data["tags"], meta["tags"])
    return pd.DataFrame(data, copy=False)


def named_tags(bits: Array, names: Sequence[str]) -> Array:
    """Each row's tags, joined by commas; there are few different sets."""
    sets, codes = np.unique(bits, return_inverse=True)
    texts = [",".join(tag for i, tag in enumerate(names) if int(value) >> i & 1) for value in sets]
    return np.array(texts, dtype=object)[codes]


def filled(frame: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Take loss, gradient norm and memory from another source where the first has none."""
    known = other.drop_duplicates(["rank", "step"], keep="last").set_index(["rank", "step"])
    rows = known.index.get_indexer(pd.MultiIndex.from_frame(frame[["rank", "step"]]))
    frame = frame.copy()
    for name in FILLED:
        lacking = (frame[f"{name}_state"].to_numpy() == ABSENT) & (rows >= 0)
        for column in (name, f"{name}_state"):
            frame.loc[lacking, column] = known[column].to_numpy()[rows[lacking]]
    for name in SIZES:
        lacking = (frame[name].to_numpy() == 0) & (rows >= 0)
        frame.loc[lacking, name] = known[name].to_numpy()[rows[lacking]]
    return frame


def steps_of(source: Source, frame: pd.DataFrame, inputs: list[Any], problems: list[str]) -> Steps:
    """The rows in order, a later attempt's step in place of an earlier one's."""
    kept, redone = in_order(frame)
    sizes = [h["world_size"] for h in source.headers if isinstance(h.get("world_size"), int)]
    return Steps(
        table=kept[[c for c in map(str, kept) if "." not in c]].assign(dur_s=seconds(kept["dur_ns"])),
        phases=part(kept, "phase."),
        cpu=part(kept, "cpu."),
        device=part(kept, "device."),
        seqs=part(kept, "seq."),
        redone=redone[["rank", "session", "start_ns", "dur_ns", "covers"]],
        starts=source.starts,
        world_size=max([*(n for n in sizes if 0 < n <= RANKS_AT_MOST), int(kept["rank"].max()) + 1]),
        on=next((str(h["device"]) for h in source.headers if "device" in h), ""),
        inputs=inputs,
        torn=sorted(set(source.torn)),
        problems=problems,
    )


def in_order(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The rows by rank and step, and those that were done again; no copy of logs that are in order, as most are."""
    rank, step = frame["rank"].to_numpy(), frame["step"].to_numpy()
    if ((rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (step[1:] > step[:-1]))).all():
        return frame, frame.iloc[:0]
    frame = frame.sort_values(["rank", "step", "start_ns"], kind="stable", ignore_index=True)
    again = frame.duplicated(["rank", "step"], keep="last")
    return frame[~again].reset_index(drop=True), frame[again]


def seconds(ns: "pd.Series[int]") -> "pd.Series[float]":
    return (ns / 1e9).where(ns >= 0)


def part(frame: pd.DataFrame, prefix: str) -> pd.DataFrame:
    """The columns behind a prefix, in seconds; sequence numbers as they are."""
    chosen = frame[[c for c in map(str, frame) if c.startswith(prefix)]]
    chosen = chosen.rename(columns=lambda name: name.removeprefix(prefix))
    return chosen if prefix == "seq." else chosen / 1e9
