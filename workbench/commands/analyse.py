"""Implement the commands that analyse files, such as `inspect` and `trace`: they open an app or write a report."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from analyzers.errors import Exit, InputError
from analyzers.files import json_bytes
from analyzers.report import Report
from analyzers.rooms import ask, find_run, limited_to, required_files, room_for
from analyzers.run import Kind, Run, discover, newest_step, selected
from analyzers.store import Options
from analyzers.worker_pool import WorkerPool
from workbench.command_options.options import (
    DocumentOptions,
    FailOn,
    LogReadOptions,
    ReadOptions,
    ShowOptions,
    StepReadOptions,
    TraceReadOptions,
)
from workbench.commands.output import KeptReport, deliver, refusing_to_overwrite
from workbench.commands.prove.permission import Permission
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.progress import shown_progress

SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", re.IGNORECASE)
UNITS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
"""{unit: exponent of the power of two that it stands for}; `4G`, `4GB` and `4GiB` all mean 4 * 2**30 bytes."""
DIGITS_AT_MOST = 18
"""The most digits in a size; no file system can count more bytes."""


@dataclass(frozen=True)
class MemoryTables:
    """The optional tables of a memory report that the user requests.

    `breakdown` adds tables of what uses the memory. `changes` is the text of `--what-if`, such as `batch=2x`. It adds a
    table of the memory that the run would need after these changes.
    """

    breakdown: bool
    changes: str | None


def reader_options(read: ReadOptions) -> Options:
    """Return the options for the analyzers that correspond to command-line options."""
    step = read.step if isinstance(read, StepReadOptions) else None
    peak = read.peak_tflops if isinstance(read, TraceReadOptions) else None
    column_map = read.column_map if isinstance(read, LogReadOptions) else None
    jobs = read.jobs or Options().jobs
    return Options(
        rank=read.rank,
        step=step,
        cache=not read.no_cache,
        max_memory=size_in_bytes(read.max_memory),
        peak_flops=peak and peak * 1e12,
        jobs=jobs,
        columns=_parsed_columns(column_map),
        workers=_connected_workers(read.cluster, jobs),
    )


def _connected_workers(address: str | None, jobs: int) -> WorkerPool | None:
    """Return the workers of the Dask cluster at an address; None if the address is None.

    `jobs` is the number of local processes, which read the files that the workers cannot read.

    Raises:
        InputError: There is no cluster at the address.
    """
    if address is None:
        return None
    from workbench.remote.cluster import connect

    return connect(address, jobs)


def _parsed_columns(texts: Sequence[str] | None) -> tuple[tuple[str, str], ...]:
    """Return a pair (quantity, column) for each `--map` option; `loss=train/nll` gives ("loss", "train/nll").

    Raises:
        UsageProblem: An option has another form, or names an unknown quantity.
    """
    if not texts:
        return ()
    from analyzers.steps.mapping import parsed_map

    try:
        return parsed_map(texts)
    except InputError as error:
        raise UsageProblem(error.message, error.hint) from error


def size_in_bytes(text: str | None, option: str = "--max-memory") -> int | None:
    """Return the bytes of a size such as `4GiB`, `500M` or `123456`.

    Raises:
        UsageProblem: `text` is not a size.
    """
    if text is None:
        return None
    match = SIZE.fullmatch(text)
    if not match or len(match[1]) > DIGITS_AT_MOST:
        raise UsageProblem(f"{option} {text[:40]}: not a size", "write it like 4GiB or 500M")
    return int(float(match[1]) * (1 << UNITS[match[2].upper()]))


def kept_report(report: Report[object], run: Run) -> KeptReport:
    """Return a report in the form in which it is stored in the cache."""
    from workbench.present.table import sections
    from workbench.present.text import more

    with_json_data: Report[msgspec.Raw] = Report(
        schema=report.schema,
        version=report.version,
        inputs=report.inputs,
        verdict=report.verdict,
        findings=report.findings,
        data=msgspec.Raw(json_bytes(report.data)),
    )
    return KeptReport(with_json_data, sections(report), more(report, run))


def open_folder(folder: Path) -> Exit:
    run = find_run([folder])
    return open_app(run, room_for(run), Options())


def open_app(run: Run, room: str, options: Options) -> Exit:
    """Open the terminal app on a run, at the view of the analyzer that is named `room`."""
    # Textual is imported only here: a document need not wait for it.
    from workbench.tui.app import open_app
    from workbench.tui.subject import subject_of

    open_app(subject_of(run, room, options))
    return Exit.OK


def memory_with_tables(
    paths: Sequence[Path], read: ReadOptions, document: DocumentOptions, tables: MemoryTables, fail_on: FailOn | None
) -> Exit:
    """Print or write the memory report, with the tables of `--breakdown` and `--what-if`."""
    from analyzers import memory

    options, run = reader_options(read), find_run(paths)
    snapshots = required_files(run, Kind.SNAPSHOT)
    with shown_progress(options, run) as options, limited_to(options, run):
        report = memory.analyze(snapshots, options)
        whole = memory.extend(report, snapshots, options, breakdown=tables.breakdown, changes=tables.changes)
    return deliver(whole, document, run, fail_on)


def prove_advice(
    paths: Sequence[Path],
    read: ReadOptions,
    document: DocumentOptions,
    fail_on: FailOn | None,
    permission: Permission,
) -> Exit:
    """Run a broken job again, as far as the person permits it, and print or write a report on the result.

    If an allocation failed, the job runs with the best advice. Otherwise it runs from the last checkpoint before a NaN
    or a spike of the loss, with recorders on.
    """
    from workbench.commands.prove.around_step import broken_step, run_again
    from workbench.commands.prove.command import prove

    run, options = find_run(paths), reader_options(read)
    event = None if _failed_to_allocate(run, options) else broken_step(run, options)
    if event is None and not run.of(Kind.SNAPSHOT):
        raise InputError(
            "--prove: no memory snapshot shows a failed allocation, and no step log a NaN or a spike of the loss",
            "give the folder of a run of which one does; failed allocations are recorded by themselves on CUDA, and by "
            "`workbench.recorders.MemoryRecorder` in a script on a CPU",
        )
    report: Report[object] = run_again(run, event, permission) if event else prove(run, options, permission)
    return deliver(report, document, run, fail_on)


def _failed_to_allocate(run: Run, options: Options) -> bool:
    from analyzers import memory
    from workbench.commands.prove.recorded_run import FINDINGS

    snapshots = run.of(Kind.SNAPSHOT)
    return bool(snapshots) and any(one.id in FINDINGS for one in memory.analyze(snapshots, options).findings)


def trace_with_critical_path(
    paths: Sequence[Path], read: ReadOptions, document: DocumentOptions, fail_on: FailOn | None
) -> Exit:
    from analyzers import traces

    options, run = reader_options(read), find_run(paths)
    with shown_progress(options, run) as options, limited_to(options, run):
        files = required_files(run, Kind.TRACE)
        report = traces.with_critical_path(traces.analyze(files, options), options)
    return deliver(report, document, run, fail_on)


def export_traces(paths: Sequence[Path], read: ReadOptions, target: Path, *, force: bool) -> Exit:
    from analyzers.traces.perfetto import export

    options = reader_options(read)
    traces = required_files(find_run(paths), Kind.TRACE)
    with refusing_to_overwrite(target, force=force):
        count = export(newest_step(selected(traces, options.rank, options.step)), target, options)
    note(f"wrote {count} events to {target}: open it at https://ui.perfetto.dev")
    return Exit.OK


def compare_runs(
    a: Path, b: Path, show: ShowOptions, fail_on: str | None, column_map: Sequence[str] | None = None
) -> Exit:
    """Compare two runs, and open an app or print the report.

    The exit status says whether run `b` is worse than run `a` by more than the limits in `--fail-on`.
    """
    from analyzers import compare
    from workbench.commands.failure_gate import parse_gate

    gate, options = parse_gate(fail_on), Options(columns=_parsed_columns(column_map))
    runs = discover(a), discover(b)
    # `--fail-on` is for scripts, which want an exit status and no app.
    if show.interactive and not fail_on:
        from workbench.tui.app import open_app
        from workbench.tui.subject import comparison

        open_app(comparison(*runs, options))
        return Exit.OK
    with shown_progress(options, *runs) as options, limited_to(options, *runs):
        report = compare.analyze(*runs, options, gate.limits)
    if show.web:
        from workbench.web.served_run import ServedRun
        from workbench.web.server import serve_view

        serve_view(ServedRun(runs[0], options, report, runs[1]), "compare")
        return Exit.OK
    delivered = deliver(report, show, runs[0])
    return Exit.FINDINGS if gate.fails(report) else delivered


def write_report(path: Path, output: Path | None, *, force: bool, anonymise: bool) -> Exit:
    """Write the report on `path` to the file `output`; the suffix of the file name determines the format."""
    if output is None:
        raise UsageProblem("report: no file to write to", "add -o report.html (or .md, .json)")
    run = find_run([path])
    with shown_progress(Options(), run) as options:
        report = ask(room_for(run), run, options)
    if anonymise:
        from workbench.present.anonymous import anonymised

        report, run = anonymised(report, run)
    return deliver(report, DocumentOptions(output=output, force=force), run)
