"""Load the logs of one run as `Logs`: the events of all files with the ranks that printed them."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from analyzers import run, store
from analyzers.case.facts import EventKind, Facts, LogEvent, RankLog
from analyzers.case.rows import Row
from analyzers.columns import UnsavedColumns
from analyzers.device_memory import NcclProcess
from analyzers.errors import WorkbenchError
from analyzers.logs.model import LogFile, UnreadLine
from analyzers.logs.reading.line_patterns.processes import signal_name
from analyzers.logs.reading.reader import ABSENT, KINDS
from analyzers.logs.reading.roster import UNRANKED
from analyzers.report import Input
from analyzers.run import first_ranks

READER = "analyzers.logs.reading.reader"
KINDS_READ = (run.Kind.LOG, run.Kind.TEXT, run.Kind.ERROR)
_Read = store.Columns | UnsavedColumns
_WORKER = re.compile(r".*/(?P<launch>[^/]+)/attempt_(?P<attempt>\d{1,6})/(?P<local_rank>\d{1,6})/[^/]+")
FILES_OF_A_CHILD = 256
_HEADS_AT_MOST = 1 << 18


@dataclass
class Logs:
    """The events of a run's logs in order, and the facts that the logs show about its ranks.

    `files_of` has, for each event, the index of its log in `files`. `ranks` has the last step and line of each rank.
    `left_out` is the number of events that were not stored.
    """

    events: list[LogEvent] = field(default_factory=list)
    clocks: list[int] = field(default_factory=list)
    """For each event, the last time that its log had printed before it, in ns since 1970; 0 if it had printed none."""
    files_of: list[int] = field(default_factory=list)
    ranks: dict[int, RankLog] = field(default_factory=dict)
    said: dict[int, list[str]] = field(default_factory=dict)
    """{rank: the last lines that it printed, the oldest first}; lines with errors are left out."""
    unranked: list[RankLog] = field(default_factory=list)
    """For each file that has lines without a rank, the last step and the last line among these lines."""
    world_size: int | None = None
    files: list[LogFile] = field(default_factory=list)
    hint: str = ""
    """The advice on the last file that could not be read."""
    inputs: list[Input] = field(default_factory=list)
    left_out: int = 0
    head: str = ""
    """The first parts of the logs as they are, of those that are read first."""
    rows: list[Row] = field(default_factory=list)
    """The first and the last rows of numbers of each log."""
    rows_source: str = ""
    """The log of the first row."""
    nccl: list[NcclProcess] = field(default_factory=list)
    """The memory of NCCL's buffers in each process that logged it."""
    has_rccl: bool = False
    """Whether the ranks use AMD's library, of which usually only the first one prints its name."""
    attempts: set[int] = field(default_factory=lambda: {0})
    """The attempts of torchrun that printed something; an attempt is one start of all workers, counted from 0."""
    is_of_attempts: bool = False
    """Whether a single log has several attempts one after the other, so that the last one is how the job ended."""


def load(logs: run.Run, options: store.Options) -> Logs:
    """Return the events in all text logs and error files of the run `logs`, and the state of its ranks by these files.

    That state is, for example, the last step and the last line that each rank printed.
    """
    loaded = Logs()
    artefacts = logs.of(*KINDS_READ)
    first = first_ranks(logs.manifest())
    parts = -(-len(artefacts) // FILES_OF_A_CHILD)
    for numbers, columns in store.load_set([a.path for a in artefacts], READER, options, parts):
        chosen = [artefacts[number] for number in numbers]
        if isinstance(columns, WorkbenchError):
            loaded.files += [LogFile(path=str(a.path), bytes=a.bytes, lines=0, problem=columns.message) for a in chosen]
            loaded.hint = columns.hint
        else:
            add(loaded, chosen, columns, first)
    # RCCL prints the same lines as NCCL, but its buffers have other sizes.
    loaded.nccl = [] if loaded.has_rccl else _with_certain_ranks(loaded.nccl)
    _number_ranks(loaded)
    loaded.events = _with_timeouts(loaded.events)
    _add_exit_codes(loaded, logs.manifest())
    return loaded


def _with_timeouts(events: list[LogEvent]) -> list[LogEvent]:
    """Return the events, in which a watchdog's report "Timeout at NCCL work" is a timeout if its rank has no other one.

    This report does not name the operation, which another rank may have named for the same number.
    """
    timeouts = [event for event in events if event.kind in (EventKind.WATCHDOG_TIMEOUT, EventKind.TIMEOUT)]
    timed_out = {event.rank for event in timeouts}
    if timeouts and None in timed_out:
        return events
    named = {event.seq: event.facts for event in timeouts if event.facts.operation}
    return [_as_timeout(event, named) if _is_only_report(event, timed_out) else event for event in events]


def _is_only_report(event: LogEvent, timed_out: "set[int | None]") -> bool:
    is_report = event.kind is EventKind.WATCHDOG_STATUS and "Timeout at NCCL work" in event.message
    return is_report and event.rank not in timed_out


def _as_timeout(event: LogEvent, named: Mapping[int | None, Facts]) -> LogEvent:
    facts, known_as = event.facts, named.get(event.seq)
    if known_as:
        facts = msgspec.structs.replace(
            facts,
            operation=known_as.operation,
            input_elements=known_as.input_elements,
            output_elements=known_as.output_elements,
            timeout_ms=known_as.timeout_ms,
        )
    return msgspec.structs.replace(event, kind=EventKind.WATCHDOG_TIMEOUT, facts=facts)


def _add_exit_codes(loaded: Logs, manifest: Mapping[str, object]) -> None:
    """Add the exit codes in `run.json` to `loaded` as events, if a timer of Python's fault handler printed stacks.

    Such a timer (`faulthandler.dump_traceback_later`) can also end its process with exit code 1; the exit codes show
    whether this happened. `manifest` is the content of `run.json`.
    """
    codes = manifest.get("exit_codes")
    if not isinstance(codes, dict) or not any(e.kind is EventKind.STACKS for e in loaded.events):
        return
    for rank, code in codes.items():
        if isinstance(code, int) and code and str(rank).isdecimal():
            facts = Facts(exit_code=code, signal=signal_name(code))
            message = f"exit code {code} of rank {rank}"
            loaded.events.append(
                LogEvent(kind=EventKind.EXIT, message=message, rank=int(rank), path="run.json", facts=facts)
            )
            loaded.clocks.append(0)
            # `run.json` is no log, so the event gets an index that no log has.
            loaded.files_of.append(len(loaded.files))


def is_of_one_rank(path: str) -> bool:
    """Return whether a file has the output of a single torchrun worker, judged by its path.

    Such a path is `<launch>/attempt_0/3/stdout.log`, where 3 is the local rank.
    """
    return bool(_WORKER.fullmatch(path))


_FALLS_TO = 0.5
_EPOCH = re.compile(r"\b[Ee]poch['\"]?\s{0,3}[:=\[]?\s{0,3}(\d{1,6}(?:\.\d{1,20})?)")


def _of_last_run(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of the last of several trainings in one log: from where the epoch last began anew."""
    epochs = [float(match[1]) if (match := _EPOCH.search(row["text"])) else None for row in rows]
    begin, before = 0, None
    for at, epoch in enumerate(epochs):
        # Ranks may print out of order, and a resumed training goes back by a part of an epoch.
        if epoch is not None and before is not None and epoch < _FALLS_TO * before:
            begin = at
        before = before if epoch is None else epoch
    return rows[begin:]


def _rank_of_file(artefact: run.Artefact, first: Mapping[str, int]) -> int | None:
    """Return the rank whose output a file holds; None if neither its folder nor its name shows the rank.

    In a worker's folder of torchrun (`<launch>/attempt_0/3/`), the rank is the local rank (3) plus the rank of the
    launch's first worker in `first`.
    """
    match = _WORKER.fullmatch(str(artefact.path))
    if match:
        return first.get(match["launch"], 0) + int(match["local_rank"])
    return artefact.rank


def _attempt_of(path: Path) -> int:
    """Return how often torchrun had restarted the job before it wrote a file, from the folder `attempt_<n>`; else 0."""
    match = _WORKER.fullmatch(str(path))
    return int(match["attempt"]) if match else 0


def add(loaded: Logs, artefacts: Sequence[run.Artefact], columns: _Read, first: Mapping[str, int]) -> None:
    """Add to `loaded` the events and ranks that one child process has read from the files `artefacts` into `columns`.

    `first` maps each torchrun launch to the rank of its first worker.
    """
    ranks = [_rank_of_file(artefact, first) for artefact in artefacts]
    before = len(loaded.files)
    for artefact, file in zip(artefacts, columns.meta["files"], strict=True):
        about = {name: file[name] for name in ("lines", "binary", "problem")}
        about["unread"] = [UnreadLine(line=number, text=text) for number, text in file["unread"]]
        about |= {"unread_count": file["unread_count"], "skipped_bytes": file["skipped"]}
        loaded.files.append(LogFile(path=str(artefact.path), bytes=artefact.bytes, **about))
        loaded.inputs.append(artefact.as_input())
        first_attempt = _attempt_of(artefact.path)
        loaded.attempts |= set(range(first_attempt, first_attempt + file["attempt"] + 1)) if artefact.bytes else set()
        loaded.is_of_attempts = loaded.is_of_attempts or file["attempt"] > 0
        loaded.left_out += file["left_out"]
        loaded.has_rccl = loaded.has_rccl or file["rccl"]
        loaded.world_size = max(loaded.world_size or 0, file["world_size"] or 0) or None
    for artefact, rank, all_rows in zip(artefacts, ranks, columns.meta["rows"], strict=True):
        rows = _of_last_run(all_rows)
        loaded.rows_source = loaded.rows_source or (str(artefact.path) if rows else "")
        loaded.rows += [
            Row(
                row["line"],
                rank if row["rank"] is None else row["rank"],
                row["step"],
                # JSON has no number for what is not finite.
                {name: math.nan if value is None else value for name, value in row["values"].items()},
                row["text"],
            )
            for row in rows
        ]
    if len(loaded.head) < _HEADS_AT_MOST:
        loaded.head += "".join(columns.meta["heads"])
    loaded.nccl += _nccl_processes(columns, artefacts, ranks)
    events = _events_of(columns, artefacts, ranks)
    loaded.events += events
    loaded.clocks += columns["event.clock_ns"].tolist()
    loaded.files_of += [before + number for number in columns["event.file"].tolist()]
    _add_roster(loaded, columns, artefacts, ranks)
    # A worker of torchrun that printed nothing ran all the same.
    for artefact, rank in zip(artefacts, ranks, strict=True):
        if rank is not None and _WORKER.fullmatch(str(artefact.path)):
            loaded.ranks.setdefault(rank, RankLog(rank=rank, path=str(artefact.path)))


def _nccl_processes(
    columns: _Read, artefacts: Sequence[run.Artefact], ranks: Sequence[int | None]
) -> list[NcclProcess]:
    """Return the facts about NCCL's memory in each process, from the log files `artefacts`, read into `columns`.

    `ranks` has the rank of each file, or None if its path shows none.
    """
    found = []
    for artefact, rank, processes in zip(artefacts, ranks, columns.meta["nccl"], strict=True):
        for process in msgspec.convert(processes, list[NcclProcess]):
            own = rank if rank is not None and len(processes) == 1 else process.rank
            found.append(msgspec.structs.replace(process, path=str(artefact.path), rank=own))
    return found


def _with_certain_ranks(processes: Sequence[NcclProcess]) -> list[NcclProcess]:
    """Return the processes; a rank that several devices claim becomes None.

    A rank in the largest communicator is the rank in the job only if this communicator has all ranks. A process that
    was started again has the same device.
    """
    devices: dict[int | None, set[tuple[str, int]]] = {}
    for process in processes:
        devices.setdefault(process.rank, set()).add((process.host, process.device))
    return [
        process if len(devices[process.rank]) == 1 else msgspec.structs.replace(process, rank=None)
        for process in processes
    ]


def _events_of(columns: _Read, artefacts: Sequence[run.Artefact], ranks: Sequence[int | None]) -> list[LogEvent]:
    """Return the events that a child process has read from log files into `columns`, each with its path and rank.

    `artefacts` are these files. `ranks` has the rank of each file, or None if its path shows none.
    """
    meta = columns.meta
    names = ("file", "kind", "rank", "time_ns", "line", "step", "seq", "count", "attempt")
    rows = zip(*(columns[f"event.{name}"].tolist() for name in names), strict=True)
    events = []
    for number, (file, kind, rank, time_ns, line, step, seq, count, attempt) in enumerate(rows):
        own = rank if rank != ABSENT else ranks[file]
        events.append(
            LogEvent(
                kind=KINDS[kind],
                message=meta["message"][number],
                rank=own,
                time_ns=known(time_ns),
                path=str(artefacts[file].path),
                line=line,
                step=known(step),
                group=meta["group"][number] or None,
                seq=known(seq),
                source=meta["source"][number],
                function=meta["function"][number],
                count=count,
                attempt=_attempt_of(artefacts[file].path) + attempt,
                chain=meta["chains"][number],
                facts=msgspec.convert(meta["facts"][number], Facts),
                excerpt=meta["excerpt"][number],
                details=meta["details"][number],
                calls=meta["calls"][number],
            )
        )
    return events


def known(value: int) -> int | None:
    """Return a value of an integer column, or None if it is `ABSENT`, which stands for a missing value."""
    return None if value == ABSENT else value


def _add_roster(
    loaded: Logs,
    columns: _Read,
    artefacts: Sequence[run.Artefact],
    ranks: Sequence[int | None],
) -> None:
    """Add to `loaded` the last step and the last line of each rank that the log files show.

    `columns` has what a child process read from the files `artefacts`; `ranks` has the rank of each file, or None if
    its path shows none. If several files show a rank, the largest step and the last line of the last such file count.
    """
    rows = zip(columns["rank.file"].tolist(), columns["rank.rank"].tolist(), columns["rank.step"].tolist(), strict=True)
    for number, (file, rank, step) in enumerate(rows):
        own = ranks[file] if rank == UNRANKED else rank
        line, path = columns.meta["last_lines"][number], str(artefacts[file].path)
        text, row = columns.meta["step_lines"][number], columns["rank.step_line"][number]
        step_line = (text, f"{path}:{row}" if text else "")
        if own is None:
            loaded.unranked.append(
                RankLog(
                    rank=UNRANKED,
                    last_step=known(step),
                    last_line=line,
                    path=path,
                    step_line=step_line[0],
                    step_source=step_line[1],
                )
            )
            continue
        loaded.said.setdefault(own, []).extend(columns.meta["said"][number])
        earlier: Any = loaded.ranks.get(own, RankLog(rank=own))
        is_later = known(step) is not None and step >= (earlier.last_step or 0)
        loaded.ranks[own] = RankLog(
            rank=own,
            last_step=max((s for s in (earlier.last_step, known(step)) if s is not None), default=None),
            step_line=step_line[0] if is_later else earlier.step_line,
            step_source=step_line[1] if is_later else earlier.step_source,
            last_line=line or earlier.last_line,
            path=path if line or not earlier.path else earlier.path,
        )


def _number_ranks(loaded: Logs) -> None:
    """Set the missing ranks of events in `loaded`, from the table of failed workers that torchrun prints.

    An event is matched to a worker by process id, or by local rank if there is one node. Without a table, the local
    rank is taken for the rank. A rank in the table also becomes a known rank of the job.
    """
    table = [e for e in loaded.events if e.kind in (EventKind.TORCHRUN_FAILURE, EventKind.TORCHRUN_ROOT_CAUSE)]
    by_pid = {(e.facts.pid, e.path): e.rank for e in table if e.facts.pid}
    by_local = {e.facts.local_rank: e.rank for e in table if e.facts.local_rank is not None}
    several_nodes = len({e.facts.host for e in table if e.facts.host}) > 1
    for index, event in enumerate(loaded.events):
        if event.rank is None:
            rank = by_pid.get((event.facts.pid or 0, event.path))
            if rank is None and not several_nodes and event.facts.local_rank is not None:
                rank = by_local.get(event.facts.local_rank, event.facts.local_rank if not table else None)
            if rank is not None:
                loaded.events[index] = msgspec.structs.replace(event, rank=rank)
    for event in table:
        if event.rank is not None:
            loaded.ranks.setdefault(event.rank, RankLog(rank=event.rank, path=event.path))


def unread_count(logs: Logs) -> int:
    """Return the number of lines in all logs that look like errors and that no rule understands."""
    return sum(file.unread_count for file in logs.files)
