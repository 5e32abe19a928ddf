"""Load the logs of one run as `Steps`: rows come from the most detailed kind of log, other kinds fill its gaps."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np
import pandas as pd

from analyzers import run, store
from analyzers.columns import Column, Mask
from analyzers.errors import InputError, NothingRecorded, WorkbenchError
from analyzers.report import Input
from analyzers.steps.mapping import ColumnMap, OtherLog, check_map, counting_logs, other_log
from analyzers.steps.model import MappedLog
from analyzers.steps.reading.log_lines import ABSENT, STARTS_AT_MOST, Header, Table, narrowed
from analyzers.steps.table import NOT_PLAIN, Durations, ProcessStart, Steps
from analyzers.store import is_milestone
from analyzers.words import quantity

READER = "analyzers.steps.reading.reader"
BYTES_OF_A_CHILD = 32 << 20
"""The bytes of logs that one child process reads, in any number of files; they take it about 100 MB of memory.

The results of each child are kept in the cache, even if reading the other logs is interrupted.
"""
NAMED = (("phase", "phases"), ("cpu", "phases"), ("device", "phases"), ("seq", "groups"), ("number", "numbers"))
RANKS_AT_MOST = 1 << 20
_RAW = ("raw", "nan")
"""The prefixes of the names of columns that come from the log of another trainer."""
_FILLED_NUMBERS = ("loss", "grad_norm")
_FILLED_SIZES = ("memory_bytes", "reserved_bytes")
"""The columns of memory sizes whose gaps are filled from a less detailed log of the same steps."""


@dataclass(frozen=True)
class Chunk:
    """The step logs that one child process has read: the columns of a `log_lines.Table`, and the rank of each file.

    Each run of a process has a number, its *session*; `before` is the number of the first session in the first file.
    """

    columns: dict[str, Column]
    meta: Mapping[str, Any]
    ranks: Sequence[int]
    before: int

    @property
    def files(self) -> Column:
        return self.columns["file"]

    @cached_property
    def names(self) -> dict[str, str]:
        """{name of a column in the combined table: its name in `columns`}; the combined table joins all chunks.

        In `columns` the names of phases are numbers, such as `phase.2`, which differ between chunks. In the combined
        table phases have their real names.
        """
        named = {f"{prefix}.{i}": f"{prefix}.{name}" for prefix, key in NAMED for i, name in enumerate(self.meta[key])}
        return {named.get(name, name): name for name in self.columns if name not in ("file", "attempt")}

    def column(self, name: str) -> Column:
        """Return a column of this chunk by its name in the combined table.

        If the logs of this chunk do not have the column, all values are the one that means "absent".
        """
        if name in _DERIVED:
            return _DERIVED[name](self)
        if name in self.names:
            return self.columns[self.names[name]]
        if name.startswith("number."):
            return np.full(len(self.files), np.nan)
        return np.full(len(self.files), -1 if name.startswith("seq.") else 0, dtype=np.int32)

    def rank(self) -> Column:
        logged = self.columns["rank"]
        of_file = np.asarray(self.ranks, dtype=np.int32)
        return np.where(logged >= 0, logged, of_file[self.files]) if self.ranks else logged

    def session(self) -> Column:
        sessions: Column = self.before + self.files.astype(np.int64) * STARTS_AT_MOST + self.columns["attempt"]
        return narrowed(sessions)

    def tagged(self, *names: str) -> Mask:
        """Return a mask of the rows of this chunk whose step has at least one of these tags, such as `compile`."""
        bits = {tag: 1 << i for i, tag in enumerate(self.meta["tags"])}
        has_tag: Mask = (self.columns["tags"] & sum(bits.get(tag, 0) for tag in names)) != 0
        return has_tag


_DERIVED: Mapping[str, Callable[[Chunk], Column]] = {
    "rank": Chunk.rank,
    "session": Chunk.session,
    "tagged": lambda chunk: chunk.tagged(*NOT_PLAIN),
    "warmup": lambda chunk: chunk.tagged("first", "compile"),
    "tags": lambda chunk: _named_tags(chunk.columns["tags"], chunk.meta["tags"]),
}
"""{column of the combined table: function that computes it from the columns that a child process has read}."""


class Source:
    """The steps and headers of all files of one kind, such as structured logs or console logs.

    Logs of other trainers are collected in `others`; `map_others` turns them into steps later.
    """

    def __init__(self, wanted: ColumnMap = ()) -> None:
        self.wanted = wanted
        self.chunks: list[Chunk] = []
        self.others: list[OtherLog] = []
        self.mapped: list[MappedLog] = []
        self.starts: list[ProcessStart] = []
        self.headers: list[Header] = []
        self.read: list[run.Artefact] = []
        self.truncated: list[int] = []
        self.problems: list[str] = []
        self.unreadable: list[tuple[run.Artefact, WorkbenchError]] = []

    @property
    def empty(self) -> bool:
        return not any(len(chunk.files) for chunk in self.chunks)

    def add(self, logs: Sequence[run.Artefact], columns: store.Columns) -> None:
        """Add logs of this kind that a child process has read into `columns`."""
        files = columns.meta["files"]
        ranks = ranks_of(logs, files)
        before = len(self.read) * STARTS_AT_MOST
        own = {name: columns[name] for name in columns if not name.startswith(_RAW)}
        self.chunks.append(Chunk(own, columns.meta, ranks, before))
        self.read += logs
        for number, (log, rank, file) in enumerate(zip(logs, ranks, files, strict=True)):
            first = before + number * STARTS_AT_MOST
            self.headers += file["headers"]
            self.starts += [
                ProcessStart.from_header(rank, first + n, header) for n, header in enumerate(file["headers"])
            ]
            self.truncated += [rank] if file.get("torn") else []
            self.problems += _problems_of(log, file)
            if "problem" in file:
                self.fail(log, InputError(f"{log.path}: {file['problem']}", file["hint"]))
            if "raw" in file:
                self.others.append(other_log(log, rank, columns, file, number, self.wanted))

    def fail(self, log: run.Artefact, error: WorkbenchError) -> None:
        """Record that a log cannot be read, and why."""
        self.unreadable.append((log, error))
        self.problems.append(error.message)

    def map_others(self) -> None:
        """Turn the logs of other trainers into steps; this is done once, after all files are read."""
        kept, problems = counting_logs(self.others)
        self.problems += problems
        for log in kept:
            table = Table()
            table.add(0, log.rows.content)
            before = self.read.index(log.artefact) * STARTS_AT_MOST
            self.chunks.append(Chunk(table.columns(), table.meta(), [log.rank], before))
        check_map(self.wanted, [log.rows.log for log in self.others])
        self.mapped = [log.rows.log for log in kept]
        self.others = []

    def first_steps(self) -> Steps:
        copies = [replace(chunk, columns=dict(chunk.columns)) for chunk in self.chunks]
        return steps_of(self, combined(copies), [log.as_input() for log in self.read], self.problems, [])

    def whole(self) -> pd.DataFrame:
        """Return the rows of all files as one table; this empties `chunks` to save memory."""
        return combined(self.chunks)


def combined(chunks: Sequence[Chunk]) -> pd.DataFrame:
    """Return the rows of all chunks as one table; this empties the chunks to save memory.

    The columns are joined one after another, so only one column at a time is in memory twice.
    """
    known = [chunk.names for chunk in chunks]
    data: dict[str, Column] = {}
    for name in dict.fromkeys([*(name for names in known for name in names), *_DERIVED]):
        data[name] = joined([chunk.column(name) for chunk in chunks])
        for chunk, names in zip(chunks, known, strict=True):
            if name in names and name not in _DERIVED:
                del chunk.columns[names[name]]  # else its pages on the disk count as memory until the end
    return pd.DataFrame(data, copy=False)


def joined(parts: list[Column]) -> Column:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _problems_of(log: run.Artefact, file: Mapping[str, Any]) -> list[str]:
    return [f"{log.path}: skipped {quantity(file['damaged'], 'damaged line')}"] if file.get("damaged") else []


Tell = Callable[[int, Steps], None]
"""A function that shows first results to a waiting user: it gets the number of logs read so far, and their steps."""


def load(artefacts: Sequence[run.Artefact], options: store.Options, tell: Tell | None = None) -> Steps:
    """Return the steps in these logs as `Steps`.

    While many logs are read, `tell` is called from time to time with two arguments: the number of logs that have been
    read, and the steps in them.

    Raises:
        NothingRecorded: No log contains a step.
        InputError: No log can be read.
    """
    sources: list[Source] = []
    problems: list[str] = []
    unreadable: list[tuple[run.Artefact, WorkbenchError]] = []
    for kind in run.TIMED:
        # A console log of 10 GB is not read where a step log says the same.
        if (logs := [a for a in artefacts if a.kind is kind]) and not _is_complete(sources):
            source = read(logs, options, tell)
            problems += source.problems
            unreadable += source.unreadable
            sources += [] if source.empty else [source]
    if not sources and unreadable:
        raise unreadable[0][1]
    if not sources:
        hint = "; ".join(problems[:3]) or "the job logged no step: did it finish one?"
        raise NothingRecorded("these logs contain no step", hint)
    first, *others = sources
    frame = first.whole()
    # Only the first source has rows; a coarser one cannot add steps that it knows less about.
    counts_from_0 = False
    for other in others:
        table = other.whole()
        if _begins_at_0(frame, table):
            table["step"] += 1
            counts_from_0 = True
        frame = filled(frame, table)
    mapped = [log for source in sources for log in source.mapped]
    steps = steps_of(first, frame, [a.as_input() for source in sources for a in source.read], problems, mapped)
    steps.unreadable, steps.log_counts_from_0 = unreadable, counts_from_0
    return steps


def _is_complete(sources: Sequence[Source]) -> bool:
    """Return whether one of the sources has losses; then less detailed kinds of logs need not be read."""
    return any((chunk.columns["loss_state"] != ABSENT).any() for source in sources for chunk in source.chunks)


def read(logs: Sequence[run.Artefact], options: store.Options, tell: Tell | None) -> Source:
    """Read logs that are all of one kind, and return their content as a `Source`."""
    source, read_before = Source(options.columns), 0
    parts = max(1, min(sum(log.bytes for log in logs) // BYTES_OF_A_CHILD, len(logs)))
    for numbers, columns in store.load_set([log.path for log in logs], READER, options, parts):
        if isinstance(columns, WorkbenchError):
            # A part that cannot be read has been halved until a single log was left.
            source.fail(logs[numbers[0]], columns)
        else:
            source.add([logs[number] for number in numbers], columns)
        files, awaited = numbers[-1] + 1, options.progress is not None and options.progress.is_awaited
        if tell and awaited and not source.empty and is_milestone(files, len(logs), read_before):
            read_before = files
            tell(files, source.first_steps())
    source.map_others()
    return source


def ranks_of(logs: Sequence[run.Artefact], files: Sequence[dict[str, Any]]) -> list[int]:
    headers = (next((h.get("rank") for h in file["headers"]), None) for file in files)
    return [rank if _is_rank(rank) else _named_rank(log) for rank, log in zip(headers, logs, strict=True)]


def _named_rank(log: run.Artefact) -> int:
    """Return the rank in a file's name, or in its folder's name (torchrun's `logs/attempt_0/3/stdout.log`), else 0."""
    if _is_rank(log.rank):
        return log.rank
    folder = log.path.parent.name
    return int(folder) if log.kind is run.Kind.LOG and re.fullmatch(r"\d{1,5}", folder) else 0


def _is_rank(value: object) -> TypeGuard[int]:
    """Return whether a value can be a rank; a damaged header may have any number."""
    return isinstance(value, int) and 0 <= value < RANKS_AT_MOST


def _named_tags(bits: Column, names: Sequence[str]) -> Column:
    sets, codes = np.unique(bits, return_inverse=True)
    texts = [",".join(tag for i, tag in enumerate(names) if int(value) >> i & 1) for value in sets]
    return np.array(texts, dtype=object)[codes]


def _begins_at_0(frame: pd.DataFrame, other: pd.DataFrame) -> bool:
    """Return whether the steps of the table `other` are those of `frame`, but numbered from 0 and not from 1.

    A script may also log a step 0 before its first step. Then its last step has the number of the last in `frame`.
    """
    ours, theirs = frame["step"], other["step"]
    return bool(ours.min() == 1 and theirs.min() == 0 and theirs.max() < ours.max())


def filled(frame: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """Return a copy of `frame` with its missing losses, gradient norms and memory sizes taken from the table `other`.

    Rows are matched by rank and step.
    """
    # A step that a restart did again counts as in its last run, as in `_in_order`.
    known = other.drop_duplicates(["rank", "step"], keep="last").set_index(["rank", "step"])
    # -1 where the other source has no such step.
    rows = known.index.get_indexer(pd.MultiIndex.from_frame(frame[["rank", "step"]]))
    frame = frame.copy()
    for name in _FILLED_NUMBERS:
        missing = (frame[f"{name}_state"].to_numpy() == ABSENT) & (rows >= 0)
        for column in (name, f"{name}_state"):
            frame.loc[missing, column] = known[column].to_numpy()[rows[missing]]
    for name in _FILLED_SIZES:
        missing = (frame[name].to_numpy() == 0) & (rows >= 0)
        frame.loc[missing, name] = known[name].to_numpy()[rows[missing]]
    return frame


def steps_of(
    source: Source, frame: pd.DataFrame, inputs: list[Input], problems: list[str], mapped: Sequence[MappedLog] = ()
) -> Steps:
    """Return the `Steps` of a source in order of rank and step; if a step was done again, its last row is used.

    `frame` has all rows of the source, `inputs` are the files that were read, `problems` sentences on what was wrong
    with them, and `mapped` says how logs of other trainers were read.
    """
    kept, redone = _in_order(frame)
    plain = {name: kept[name] for name in map(str, kept) if "." not in name}
    sizes = [h["world_size"] for h in source.headers if isinstance(h.get("world_size"), int)]
    return Steps(
        table=pd.DataFrame(plain | {"dur_s": seconds(kept["dur_ns"])}, copy=False),
        phases=Durations(part(kept, "phase.")),
        cpu=Durations(part(kept, "cpu.")),
        device=Durations(part(kept, "device.")),
        seqs=part(kept, "seq."),
        numbers=part(kept, "number."),
        redone=redone[["rank", "session", "start_ns", "dur_ns", "covers"]],
        starts=source.starts,
        world_size=max([*(n for n in sizes if 0 < n <= RANKS_AT_MOST), int(kept["rank"].max()) + 1]),
        device_type=next((str(h["device"]) for h in source.headers if "device" in h), ""),
        inputs=inputs,
        truncated=sorted(set(source.truncated)),
        problems=problems,
        logs=list(mapped),
    )


def _in_order(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows in order of rank and step, and as a second table the rows of steps that a restart did again.

    Rows that are in order already, as in most logs, are not copied.
    """
    rank, step = frame["rank"].to_numpy(), frame["step"].to_numpy()
    if ((rank[1:] > rank[:-1]) | ((rank[1:] == rank[:-1]) & (step[1:] > step[:-1]))).all():
        return frame, frame.iloc[:0]
    frame = frame.sort_values(["rank", "step", "start_ns"], kind="stable", ignore_index=True)
    redone = frame.duplicated(["rank", "step"], keep="last")
    return frame[~redone].reset_index(drop=True), frame[redone]


def seconds(ns: "pd.Series[int]") -> "pd.Series[float]":
    return (ns / 1e9).where(ns >= 0)


def part(frame: pd.DataFrame, prefix: str) -> pd.DataFrame:
    data = {name.removeprefix(prefix): frame[name] for name in map(str, frame) if name.startswith(prefix)}
    return pd.DataFrame(data, index=frame.index, copy=False)
