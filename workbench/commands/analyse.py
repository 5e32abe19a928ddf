"""Ask the analyzers what a command line names, then open an app or deliver a document: `inspect`, `hang`, `trace`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analyzers.errors import Exit
from analyzers.run import Run, discover, newest_step, selected
from analyzers.store import Options
from workbench.ask import ROOMS, ask, find, parts, require, room_for
from workbench.commands.output import deliver, writing
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.options import Document, FailOn, Reading, Showing, StepReading, TraceReading

UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}


@dataclass(frozen=True)
class MemoryTables:
    """Tables of a memory report that are made only when asked for."""

    breakdown: bool
    changes: str | None


def reader_options(reading: Reading) -> Options:
    """How the analyzers are to read."""
    chosen: dict[str, Any] = {"jobs": reading.jobs} if reading.jobs else {}
    step = reading.step if isinstance(reading, StepReading) else None
    peak = reading.peak_tflops if isinstance(reading, TraceReading) else None
    return Options(
        rank=reading.rank,
        step=step,
        cache=not reading.no_cache,
        max_memory=size_in_bytes(reading.max_memory),
        peak_flops=peak and peak * 1e12,
        **chosen,
    )


def size_in_bytes(text: str | None, option: str = "--max-memory") -> int | None:
    """Bytes in a size such as `4GiB`, `500M` or `123456`."""
    if text is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if not found:
        raise UsageProblem(f"{option} {text}: not a size", "write it like 4GiB or 500M")
    return int(float(found[1]) * (1 << UNITS[found[2].upper()]))


def answer(room: str | None, paths: Sequence[Path], reading: Reading, showing: Showing, fail_on: FailOn | None) -> Exit:
    """Ask, show, and say with the exit status whether a finding reaches `--fail-on`."""
    options, run = reader_options(reading), find(paths)
    room = room or room_for(run)
    if showing.interactive:
        return open_app(run, room, options)
    if showing.web:
        from workbench.web.server import serve_report

        serve_report(run, room, options)
        return Exit.OK
    return deliver(ask(room, run, options), showing, run, fail_on)


def open_folder(folder: Path) -> Exit:
    """The terminal app on all that a folder holds."""
    run = find([folder])
    return open_app(run, room_for(run), Options())


def open_app(run: Run, room: str, options: Options) -> Exit:
    from workbench.tui.app import open_app
    from workbench.tui.subject import RunCase

    open_app(RunCase(run, room, options))
    return Exit.OK


def memory_with_tables(
    paths: Sequence[Path], reading: Reading, document: Document, tables: MemoryTables, fail_on: FailOn | None
) -> Exit:
    """The memory report with further tables, as a document."""
    from analyzers.memory import with_further

    options, run = reader_options(reading), find(paths)
    snapshots = require(run, *ROOMS["memory"])
    report = ask("memory", run, options)
    whole = with_further(report, snapshots, options, breakdown=tables.breakdown, changes=tables.changes)
    return deliver(whole, document, run, fail_on)


def trace_with_critical_path(
    paths: Sequence[Path], reading: Reading, document: Document, fail_on: FailOn | None
) -> Exit:
    """The trace report with the critical path, as a document."""
    from analyzers.traces import with_critical_path

    options, run = reader_options(reading), find(paths)
    return deliver(with_critical_path(ask("trace", run, options), options), document, run, fail_on)


def export_traces(paths: Sequence[Path], reading: Reading, target: Path, *, force: bool) -> Exit:
    """The traces of a run's last recorded step as one file for Perfetto."""
    from analyzers.traces.export.perfetto import export

    options = reader_options(reading)
    artefacts = newest_step(selected(require(find(paths), *ROOMS["trace"]), options.rank, options.step))
    with writing(target, force=force):
        count = export(artefacts, target, options)
    note(f"wrote {count} events to {target}: open it at https://ui.perfetto.dev")
    return Exit.OK


def compare_runs(a: Path, b: Path, showing: Showing, fail_on: str | None) -> Exit:
    """Two runs side by side, and whether the second passes a gate."""
    from analyzers import compare
    from workbench.commands.failure_gate import gate

    limits = gate(fail_on)
    runs = discover(a), discover(b)
    if showing.interactive and not fail_on:
        from workbench.tui.app import open_app
        from workbench.tui.subject import Comparison

        open_app(Comparison(*runs, Options()))
        return Exit.OK
    report = compare.analyze(*runs, Options(), limits.limits)
    if showing.web:
        from workbench.web.served_run import ServedRun
        from workbench.web.server import serve_view

        serve_view(ServedRun(runs[0], Options(), report, parts(report), runs[1]), "compare")
        return Exit.OK
    delivered = deliver(report, showing, runs[0])
    return Exit.FINDINGS if limits.fails(report) else delivered


def write_report(path: Path, output: Path | None, *, force: bool, anonymise: bool) -> Exit:
    """A report on whatever lies at `path`, in the format that the file's name asks for."""
    if output is None:
        raise UsageProblem("report: no file to write to", "add -o report.html (or .md, .json)")
    run = find([path])
    told = ask(room_for(run), run, Options())
    if anonymise:
        from workbench.present.anonymous import anonymised

        told, run = anonymised(told, run)
    return deliver(told, Document(output=output, force=force), run)
