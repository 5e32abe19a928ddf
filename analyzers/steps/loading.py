"""Logs of one run -> `Steps`: the most telling source counts, the others fill in what it lacks."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from analyzers import run, store
from analyzers.errors import InputError, WorkbenchError
from analyzers.steps.reading.jsonl import STARTS_AT_MOST
from analyzers.steps.reading.log_lines import ABSENT, Array, Header, narrowed
from analyzers.steps.table import NOT_PLAIN, Durations, ProcessStart, Steps

READER = "analyzers.steps.reading.reader"
SHARED_BYTES = 32 << 20
"""Logs larger than this together are read by several children."""
NAMED = (("phase", "phases"), ("cpu", "phases"), ("device", "phases"), ("seq", "groups"))
RANKS_AT_MOST = 1 << 20
FILLED = ("loss", "grad_norm")
SIZES = ("memory_bytes", "reserved_bytes")


@dataclass(frozen=True)
class Chunk:
    """Logs that one child has read: columns of a `lines.Table`, the rank of each file, the first session's number."""

    columns: dict[str, Array]
    meta: Mapping[str, Any]
    ranks: Sequence[int]
    before: int

    @property
    def files(self) -> Array:
        return self.columns["file"]

    @cached_property
    def names(self) -> dict[str, str]:
        """What each column is called in the whole table, and here."""
        named = {f"{prefix}.{i}": f"{prefix}.{name}" for prefix, key in NAMED for i, name in enumerate(self.meta[key])}
        return {named.get(name, name): name for name in self.columns if name not in ("file", "attempt")}

    def column(self, name: str) -> Array:
        """A column by its name in the whole table; what these logs lack took no time."""
        if name in MADE:
            return MADE[name](self)
        if name in self.names:
            return self.columns[self.names[name]]
        return np.full(len(self.files), -1 if name.startswith("seq.") else 0, dtype=np.int32)

    def rank(self) -> Array:
        told = self.columns["rank"]
        return np.where(told >= 0, told, np.asarray(self.ranks, dtype=np.int32)[self.files]) if self.ranks else told

    def session(self) -> Array:
        found: Array = self.before + self.files.astype(np.int64) * STARTS_AT_MOST + self.columns["attempt"]
        return narrowed(found)

    def tagged(self, *names: str) -> Array:
        """Which steps have one of these tags."""
        bits = {tag: 1 << i for i, tag in enumerate(self.meta["tags"])}
        found: Array = (self.columns["tags"] & sum(bits.get(tag, 0) for tag in names)) != 0
        return found


MADE: Mapping[str, Callable[[Chunk], Array]] = {
    "rank": Chunk.rank,
    "session": Chunk.session,
    "tagged": lambda chunk: chunk.tagged(*NOT_PLAIN),
    "warmup": lambda chunk: chunk.tagged("first", "compile"),
    "tags": lambda chunk: named_tags(chunk.columns["tags"], chunk.meta["tags"]),
}
"""Columns that are made of what the child has read."""


class Source:
    """What the files of one kind hold."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.starts: list[ProcessStart] = []
        self.headers: list[Header] = []
        self.read: list[run.Artefact] = []
        self.torn: list[int] = []
        self.problems: list[str] = []

    @property
    def empty(self) -> bool:
        """Whether no step came of it."""
        return not any(len(chunk.files) for chunk in self.chunks)

    def add(self, logs: Sequence[run.Artefact], columns: store.Columns) -> None:
        """Take in a chunk of logs."""
        files = columns.meta["files"]
        ranks = ranks_of(logs, files)
        before = len(self.read) * STARTS_AT_MOST
        self.chunks.append(Chunk(dict(columns), columns.meta, ranks, before))
        self.read += logs
        for number, (log, rank, file) in enumerate(zip(logs, ranks, files, strict=True)):
            first = before + number * STARTS_AT_MOST
            self.headers += file["headers"]
            self.starts += [
                ProcessStart.from_header(rank, first + n, header) for n, header in enumerate(file["headers"])
            ]
            self.torn += [rank] if file.get("torn") else []
            self.problems += problems_of(log, file)

    def whole(self) -> pd.DataFrame:
        """All rows; used up then."""
        return combined(self.chunks)


def combined(chunks: Sequence[Chunk]) -> pd.DataFrame:
    """The rows of all chunks as one table, a column after the other, so that no more than one is in memory twice."""
    known = [chunk.names for chunk in chunks]
    data: dict[str, Array] = {}
    for name in dict.fromkeys([*(name for names in known for name in names), *MADE]):
        data[name] = joined([chunk.column(name) for chunk in chunks])
        for chunk, names in zip(chunks, known, strict=True):
            if name in names and name not in MADE:
                del chunk.columns[names[name]]  # else its pages on the disk count as memory until the end
    return pd.DataFrame(data, copy=False)


def joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


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
    return any((chunk.columns["loss_state"] != ABSENT).any() for source in sources for chunk in source.chunks)


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
    plain = {name: kept[name] for name in map(str, kept) if "." not in name}
    sizes = [h["world_size"] for h in source.headers if isinstance(h.get("world_size"), int)]
    return Steps(
        table=pd.DataFrame(plain | {"dur_s": seconds(kept["dur_ns"])}, copy=False),
        phases=Durations(part(kept, "phase.")),
        cpu=Durations(part(kept, "cpu.")),
        device=Durations(part(kept, "device.")),
        seqs=part(kept, "seq."),
        redone=redone[["rank", "session", "start_ns", "dur_ns", "covers"]],
        starts=source.starts,
        world_size=max([*(n for n in sizes if 0 < n <= RANKS_AT_MOST), int(kept["rank"].max()) + 1]),
        device_type=next((str(h["device"]) for h in source.headers if "device" in h), ""),
        inputs=inputs,
        truncated=sorted(set(source.torn)),
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
    """The columns behind a prefix, taken out of the frame."""
    data = {name.removeprefix(prefix): frame.pop(name) for name in map(str, list(frame)) if name.startswith(prefix)}
    return pd.DataFrame(data, index=frame.index, copy=False)
