"""Analyze profiler traces: `analyze` takes the files and returns a `Report[TraceData]` on where the time goes."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from analyzers import store
from analyzers.errors import WorkbenchError
from analyzers.report import Finding, Report, merged, ranked, tool_version
from analyzers.run import Artefact, selected, unreadable
from analyzers.traces.across.clocks import Clock
from analyzers.traces.across.rank_waits import (
    AxisWaits,
    CollectiveWait,
    GroupWaits,
    RankComparison,
    RankWaits,
    WhatIf,
    axis_waits,
    compare_ranks,
    summed_waits,
)
from analyzers.traces.across.stages import job_what_ifs
from analyzers.traces.across.stragglers import Straggler, late_ranks
from analyzers.traces.findings.common import problem_sentence
from analyzers.traces.findings.devices import devices_in_turn, memory_findings, with_folders
from analyzers.traces.findings.findings import time_findings
from analyzers.traces.findings.opportunities import advices, opportunity_findings
from analyzers.traces.findings.stragglers import straggler_findings, with_detail
from analyzers.traces.findings.verdict import verdict
from analyzers.traces.loading import Recording, load, open_trace
from analyzers.traces.model import Advice, CriticalPart, RankTrace
from analyzers.traces.opportunities.imbalance import imbalances, without_waiting
from analyzers.traces.reading.trace import NO_STEP

_SCHEMA = "workbench.trace/1"


class TraceData(msgspec.Struct, frozen=True, kw_only=True):
    """The field `data` of the JSON document `workbench.trace/1`: all tables of a trace report.

    `ranks` has the numbers about each device or host of each file. `opportunities` has one item per kind of
    opportunity, with the numbers of the rank that can save most. `critical` is the critical path of the last profiled
    step of the first of `ranks`; it is empty unless it was requested (`with_critical_path` fills it in).

    The other fields compare ranks, and are empty if no collectives were recorded by several ranks. `waits` (how long
    each rank waits) and `stragglers` cover all files. The others cover the last recorded step: `groups` and `axes` sum
    up the waiting by process group and by mesh dimension, `meetings` are the collectives with most waiting, `clocks`
    are the offsets of the ranks' clocks, and `what_ifs` are the savings by assumed changes. `stages_unknown` says why
    `what_ifs` has no answers about the pipeline stages of a job with sends and receives (empty: it has, or there are
    none).
    """

    ranks: list[RankTrace]
    opportunities: list[Advice] = []
    waits: list[RankWaits]
    stragglers: list[Straggler]
    groups: list[GroupWaits]
    axes: list[AxisWaits]
    meetings: list[CollectiveWait]
    clocks: list[Clock]
    what_ifs: list[WhatIf] = []
    stages_unknown: str = ""
    critical: list[CriticalPart] = []


def analyze(artefacts: Sequence[Artefact], options: store.Options | None = None) -> Report[TraceData]:
    """Return a report on where the time goes in profiler traces of one or several ranks: verdict, findings and tables.

    Args:
        artefacts: The trace files, as `analyzers.run.discover(folder).of(Kind.TRACE)` lists them. Files of several
            ranks at one step are compared with each other; those at several steps are summed.
        options: Limits of the readers, the rank and step to select, the device's peak FLOP/s.

    Returns:
        The report. `data.ranks` has one entry for each device (or host) of each file, times in integer ns. A file that
        cannot be read becomes a finding, as long as another can.

    Raises:
        InputError: No file can be read, or none is of the selected rank and step.

    Example:
        >>> from analyzers import run, traces
        >>> report = traces.analyze(run.discover(folder).of(run.Kind.TRACE))  # doctest: +SKIP
        >>> report.verdict.kind, report.verdict.ranks  # doctest: +SKIP
        ('straggler', [3])
    """
    options = options or store.Options()
    inputs = selected(artefacts, options.rank, options.step)
    recordings, failures = load(inputs, options, _teller(options))
    if not recordings:
        raise failures[0][1]
    comparisons = _compared_by_step(recordings)
    report = _report_of(recordings, comparisons, failures)
    return msgspec.structs.replace(
        report,
        inputs=[artefact.as_input() for artefact in inputs],
        data=_with_what_ifs(report.data, recordings, comparisons),
    )


def _teller(options: store.Options) -> Callable[[int, list[Recording]], None] | None:
    """Return a function that shows first results to the user while further files are read; None without a display.

    The function takes the number of files read so far, and their recordings. The display is `options.progress`.
    """
    progress = options.progress

    def tell(files: int, recordings: list[Recording]) -> None:
        if progress and progress.is_awaited:
            progress.answer(files, _report_of(recordings, _compared_by_step(recordings), []).verdict.sentence)

    return tell if progress else None


def _report_of(
    recordings: Sequence[Recording],
    comparisons: Sequence[RankComparison],
    failures: Sequence[tuple[Artefact, WorkbenchError]],
) -> Report[TraceData]:
    """Return the report on some recordings; its inputs and what-ifs are not filled in yet.

    `comparisons` compare the ranks at each recorded step of the run; `failures` has (file, error) of unreadable files.
    """
    accounts = [_with_problems(recording) for recording in recordings]
    waits = summed_waits(comparisons)
    stragglers = [with_detail(late) for late in late_ranks(comparisons)]
    findings = [unreadable(artefact, "trace", error) for artefact, error in failures]
    # A finding that several accounts share is worded for the first, and the verdict continues with the longest one.
    longest_first = sorted(recordings, key=lambda recording: -recording.account.span_ns)
    findings += with_folders([finding for recording in longest_first for finding in _account_findings(recording)])
    findings += devices_in_turn(accounts)
    shared = [without_waiting(account, waits) for account in accounts]
    rows = advices(shared, imbalances(accounts, stragglers))
    host_bound = any(finding.id == "trace.host_bound" for finding in findings)
    findings += opportunity_findings(rows, host_bound)
    sources = {account.rank: account.path for account in accounts if account.rank is not None}
    findings = ranked(merged(findings + list(straggler_findings(stragglers, waits, sources))))
    clocks = comparisons[-1].clocks if comparisons else []
    return Report(
        schema=_SCHEMA,
        version=tool_version(),
        inputs=[],
        verdict=verdict(accounts, findings, clocks, rows),
        findings=findings,
        data=_trace_data(accounts, comparisons, waits, stragglers, rows),
    )


def _trace_data(
    accounts: list[RankTrace],
    comparisons: Sequence[RankComparison],
    waits: list[RankWaits],
    stragglers: list[Straggler],
    opportunities: list[Advice],
) -> TraceData:
    """Return the tables of a report: the given tables, and further ones computed from the last of `comparisons`.

    Each of `comparisons` compares the ranks at one recorded step of the run. The further tables are therefore about the
    last such step: process groups, axes of the device mesh, the longest waits, and the offsets between the clocks of
    the ranks. They are empty without a comparison.
    """
    last = comparisons[-1] if comparisons else None
    return TraceData(
        ranks=accounts,
        opportunities=opportunities,
        waits=waits,
        stragglers=stragglers,
        groups=last.groups if last else [],
        axes=axis_waits(last.groups) if last else [],
        meetings=last.longest_waits if last else [],
        clocks=last.clocks if last else [],
    )


def _with_what_ifs(
    data: TraceData, recordings: Sequence[Recording], comparisons: Sequence[RankComparison]
) -> TraceData:
    """Return the tables with `what_ifs` filled in: the changes that would save time in the run's last recorded step."""
    last = comparisons[-1] if comparisons else None
    answers, unknown = job_what_ifs(
        last.lateness.matched.recordings if last else _grouped_by_step(recordings)[-1], last
    )
    return msgspec.structs.replace(data, what_ifs=answers, stages_unknown=unknown)


def _with_problems(recording: Recording) -> RankTrace:
    sentences = [problem_sentence(problem) for problem in recording.problems]
    return msgspec.structs.replace(recording.account, problems=sentences)


def _account_findings(recording: Recording) -> Iterator[Finding]:
    yield from time_findings(recording.account, recording.problems)
    yield from memory_findings(recording.account)


def with_critical_path(report: Report[TraceData], options: store.Options | None = None) -> Report[TraceData]:
    """Return the same report with `data.critical` filled in: the critical path of the first rank's last step."""
    parts = critical_parts(report.data.ranks[0], options)
    return msgspec.structs.replace(report, data=msgspec.structs.replace(report.data, critical=parts))


def critical_parts(account: RankTrace, options: store.Options | None = None) -> list[CriticalPart]:
    """Return the critical path of the last step of a device or host (`account`), summed by kind and name.

    Without step marks it is the critical path of the whole recording.

    Raises:
        InputError: The trace file can no longer be read.
    """
    from analyzers.traces.critical_path import critical_path, path_sums

    trace = open_trace(Path(account.path), options)
    devices = [other["device"] for other in trace.columns.meta["accounts"]]
    step, window = None, None
    if trace.steps:
        step, start, end = trace.steps[-1]
        window = start - trace.origin, end - trace.origin
    path = critical_path(trace, devices.index(account.device), window)
    return [
        CriticalPart(
            rank=account.rank,
            device=account.device,
            step=step,
            kind=part.kind,
            name=part.name,
            count=part.count,
            path_ns=part.path_ns,
            saved_ns=part.saved_ns,
        )
        for part in path_sums(path)
    ]


def _compared_by_step(recordings: Sequence[Recording]) -> list[RankComparison]:
    """Return a comparison of the ranks for each recorded step of the run, in the order of the steps.

    Steps at which the ranks cannot be compared are left out.
    """
    groups = _grouped_by_step(recordings)
    return [comparison for group in groups if (comparison := compare_ranks(group))]


def _grouped_by_step(recordings: Sequence[Recording]) -> list[list[Recording]]:
    """Return the recordings of each step of the run, in the order of the steps; steps without traces are left out."""
    by_step = defaultdict[int, list[Recording]](list)
    for recording in recordings:
        # Files outside an `iteration_N` folder name no step: they belong together.
        by_step[NO_STEP if recording.artefact.step is None else recording.artefact.step].append(recording)
    return [by_step[step] for step in sorted(by_step)]
