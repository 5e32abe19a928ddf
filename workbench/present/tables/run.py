"""Tables of the whole run: the state of each rank, and the files of the run."""

import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from analyzers.device_memory import untracked
from analyzers.hangs import HangData
from analyzers.incident import IncidentData
from analyzers.logs import views
from analyzers.logs.model import LogsData
from analyzers.memory import MemoryData
from analyzers.report import Finding, Report
from analyzers.rooms import ROOMS, imported
from analyzers.run import Artefact, Run
from analyzers.steps import StepsData
from analyzers.words import duration, rank_ranges, size
from workbench.colours import SEVERITY_SIGNS
from workbench.present.table import Table, table
from workbench.present.tables.memory import device_memory
from workbench.rooms import FACES, data_of

RANKS_AT_MOST = 2000
FILES_AT_MOST = 200


def rank_list(report: Report[object]) -> Table:
    """Return a table with a row per rank: last step, median step time, peak memory, ranks it waits for, findings.

    Ranks that findings name come first.
    """
    logged, hang = data_of(report, StepsData), data_of(report, HangData)
    steps = {rank.rank: rank for rank in logged.ranks} if logged else {}
    peaks = peak_bytes(data_of(report, MemoryData))
    waits = {wait.rank: wait.waits_for for wait in hang.waits} if hang else {}
    named = _findings_by_rank(report.findings)
    # A rank may appear only in a finding, as one that left no file at all does.
    known = {file.rank for file in report.inputs if file.rank is not None} | {*steps, *peaks, *waits, *named}
    rows = (
        (
            rank,
            steps[rank].last_step if rank in steps else "",
            duration(steps[rank].median_step_s) if rank in steps else "",
            size(peaks[rank]) if rank in peaks else "",
            rank_ranges(waits[rank]) or "no rank" if rank in waits else "",
            "  ".join(text for _, text in named.get(rank, [])),
        )
        for rank in sorted(known, key=lambda rank: (named[rank][0][0] if rank in named else len(report.findings), rank))
    )
    heads = "rank> | last step> | median step> | peak memory> | waits for | findings"
    return table("Ranks", heads, rows, RANKS_AT_MOST)


def peak_bytes(data: MemoryData | None) -> dict[int, int]:
    """Return {rank: highest peak in the rank's memory snapshots, in bytes}."""
    peaks: dict[int, int] = {}
    for device in data.devices if data else ():
        if device.rank is not None:
            peaks[device.rank] = max(peaks.get(device.rank, 0), device.peak_allocated_bytes)
    return peaks


def _findings_by_rank(findings: Sequence[Finding]) -> dict[int, list[tuple[int, str]]]:
    """Return {rank: [(index in `findings`, severity sign and id)]} of the findings that name the rank."""
    named: dict[int, list[tuple[int, str]]] = {}
    for position, finding in enumerate(findings):
        for rank in finding.ranks:
            named.setdefault(rank, []).append((position, f"{SEVERITY_SIGNS[finding.severity]} {finding.id}"))
    return named


def file_list(runs: Sequence[Run]) -> Table:
    """Return a table of the runs' files; files of the same kind and step share a row."""
    groups: dict[tuple[str, int, bool], list[Artefact]] = {}
    for file in (artefact for run in runs for artefact in run.artefacts):
        # Not None, which cannot be sorted with numbers.
        groups.setdefault((file.kind, -1 if file.step is None else file.step, file.exit), []).append(file)
    rows = (
        (
            kind.replace("_", " "),
            "" if step < 0 else f"{step} (exit)" if at_exit else step,
            rank_ranges(file.rank for file in files if file.rank is not None),
            len(files),
            size(sum(file.bytes for file in files)),
            _path_in_run(files[0], runs),
        )
        for (kind, step, at_exit), files in sorted(groups.items())
    )
    return table("Files", "kind | step> | ranks | files> | size> | first file", rows, FILES_AT_MOST)


def _path_in_run(file: Artefact, runs: Sequence[Run]) -> str:
    roots = [run.root for run in runs]
    folder = roots[0] if len(roots) == 1 else shared_folder([root.parent for root in roots])
    return str(file.path.relative_to(folder)) if file.path.is_relative_to(folder) else str(file.path)


def shared_folder(folders: Sequence[Path]) -> Path:
    """Return the innermost folder that contains all of `folders`; the root folder if one of them is relative."""
    absolute = all(folder.is_absolute() for folder in folders)
    return Path(os.path.commonpath(folders)) if folders and absolute else Path("/")


_CHAIN = "Chain of events"
"""The title of the table of events."""
_TABLES_BEHIND = 3
"""The number of tables that are shown of each analyzer that the chain names; the analyzer's own view has the others."""

_LAST = ("steps", "trace")


def incident_tables(data: IncidentData) -> list[Table]:
    """Return the chain of events of an incident, and the tables of the analyzers that found these events.

    A chain of one event is left out, because it says no more than the verdict. Without an incident, return the first
    table of each analyzer.
    """
    events = data.chain if len(data.chain) > 1 else ()
    chain = table(_CHAIN, "# | event", ((i, link.text) for i, link in enumerate(events, 1)))
    named = {finding.partition(".")[0] for link in data.chain for finding in link.findings}
    rooms = _tables_by_room(data)
    # Nothing went wrong, so no room explains anything: each shows its first table as an overview.
    if not named:
        return [chain, *(table for tables in rooms.values() for table in tables[:1])]
    return [chain, *(table for room, tables in rooms.items() if room in named for table in tables[:_TABLES_BEHIND])]


def _tables_by_room(data: IncidentData) -> dict[str, list[Table]]:
    names = sorted(ROOMS, key=lambda name: _LAST.index(name) if name in _LAST else -1)
    found = ((name, getattr(data, name, None)) for name in names)
    return {name: imported(FACES[name].tables)(data) for name, data in found if data is not None}


_EVENTS, _RANKS = 20, 40
_QUIET = frozenset({"dump_written", "watchdog_status", "overflow_skip"})
"""The kinds of events that the tables leave out, because they say little on their own; the JSON document has them."""


def logs_tables(data: LogsData) -> list[Table]:
    return [event_table(data), *_device_tables(data), ranks(data), files(data)]


def _device_tables(data: LogsData) -> list[Table]:
    """Return a list with the memory table of one device: the device with the most memory outside the allocator.

    The numbers come from out-of-memory messages in the logs. If no log has such a message, the list is empty.
    """
    fullest = max(data.memory, key=lambda account: untracked(account.parts), default=None)
    if fullest is None:
        return []
    rank = "" if fullest.rank is None else f", rank {fullest.rank}"
    return [device_memory(fullest.parts, f"{rank}, when {size(fullest.requested_bytes)} were requested")]


def event_table(data: LogsData, limit: int = _EVENTS) -> Table:
    heads = "rank> | time | event | after step> | message | source line | log | times>"
    return table("Events in the logs", heads, map(_event_cells, shown_events(data)), limit)


def shown_events(data: LogsData) -> list[views.EventRow]:
    return [row for row in views.events(data) if row.kind not in _QUIET]


def _event_cells(row: views.EventRow) -> tuple[object, ...]:
    rank, step = ("" if value is None else value for value in (row.rank, row.step))
    return (rank, row.time, row.kind.replace("_", " "), step, row.message, row.source, row.log, row.count)


def first_to_show(rows: Sequence[views.EventRow], findings: Sequence[Finding], culprits: Sequence[int]) -> int:
    """Return the index in `rows` of the event that is selected at first.

    This is the event that is evidence of the first finding about logs. Without one, it is the first event of a rank in
    `culprits`, because the other ranks only log consequences. Otherwise it is the first event.
    """
    facts = [fact for found in findings if found.id.startswith("logs.") for fact in found.evidence]
    source = facts[0].source if facts else ""
    evidence = (number for number, row in enumerate(rows) if source.endswith(row.log))
    of_culprits = (number for number, row in enumerate(rows) if row.rank in culprits)
    return next(chain(evidence, of_culprits), 0)


def ranks(data: LogsData) -> Table:
    rows = ((r.rank, "" if r.last_step is None else r.last_step, r.last_line.strip()) for r in data.ranks)
    return table("Ranks in the logs", "rank> | last step> | last line", rows, _RANKS)


def files(data: LogsData) -> Table:
    """Return a table of the logs that were read; of the folders that all paths share, only the last is shown."""
    folder = shared_folder([Path(file.path).parent for file in data.files]).parent
    rows = ((below(f.path, folder), f.lines, size(f.bytes), f.problem) for f in data.files)
    return table("Logs", "log | lines> | size> | problem", rows)


def below(path: str, folder: Path) -> str:
    return str(Path(path).relative_to(folder)) if Path(path).is_relative_to(folder) else path
