"""Analyze profiler traces: `analyze` takes the files and returns a `Report[TraceData]` on where the time goes."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from analyzers import store
from analyzers.errors import WorkbenchError
from analyzers.report import Finding, Report, Severity, Status, Verdict, merged, ranked, status_of
from analyzers.run import Artefact, selected, unreadable
from analyzers.traces.accounts import EXCERPT
from analyzers.traces.advice import advices, opportunity_findings
from analyzers.traces.clocks import Clock
from analyzers.traces.devices import devices_in_turn, memory_findings, with_folders
from analyzers.traces.evidence import GPU_TRAINING, lacks_kernels, problem_sentence
from analyzers.traces.loading import Recording, load, open_trace
from analyzers.traces.model import Advice, CriticalPart, OpportunityKind, RankTrace
from analyzers.traces.opportunities import imbalances, without_waiting
from analyzers.traces.rank_waits import (
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
from analyzers.traces.reading.trace import NO_STEP
from analyzers.traces.recording import time_findings
from analyzers.traces.stages import job_what_ifs
from analyzers.traces.stragglers import Straggler, late_ranks, straggler_findings, with_detail
from analyzers.words import duration_ns, rank_names, share

_HEALTHY_CONFIDENCE = 0.8


class VerdictClass(StrEnum):
    """The kinds of a verdict on traces.

    Except for HEALTHY and UNKNOWN, `trace.` plus the value is also the id of a finding.
    """

    STRAGGLER = "straggler"
    EXPOSED_COMMUNICATION = "exposed_communication"
    HOST_BOUND = "host_bound"
    DEVICES_IN_TURN = "devices_in_turn"
    DATA_LOADER = "data_loader"
    PYTHON = "python"
    SYNCHRONISING_CALL = "synchronising_call"
    LAUNCH = "launch"
    UNFUSED_ATTENTION = "unfused_attention"
    FLOAT64 = "float64"
    FLOAT32 = "float32"
    MISALIGNED = "misaligned"
    PAGEABLE_COPIES = "pageable_copies"
    EXPOSED_COPIES = "exposed_copies"
    CROSS_ENTROPY = "cross_entropy"
    LAYOUT_COPIES = "layout_copies"
    ELEMENTWISE = "elementwise"
    SMALL_COLLECTIVES = "small_collectives"
    BUS_BANDWIDTH = "bus_bandwidth"
    RECOMPUTATION = "recomputation"
    MEMORY_NEAR_LIMIT = "memory_near_limit"
    MEMORY_GROWS = "memory_grows"
    HEALTHY = "healthy"
    UNKNOWN = "unknown"


class Missing(StrEnum):
    """A kind of evidence that is missing in the traces and would make the verdict more certain."""

    CLOCKS = "clocks"
    STEP_MARKS = "step_marks"
    DEVICE_EVENTS = "device_events"
    OTHER_RANKS = "other_ranks"


_MOST_IMPORTANT = (
    VerdictClass.STRAGGLER,
    VerdictClass.EXPOSED_COMMUNICATION,
    VerdictClass.HOST_BOUND,
    VerdictClass.DEVICES_IN_TURN,
)
_ABOUT_MEMORY = (VerdictClass.MEMORY_NEAR_LIMIT, VerdictClass.MEMORY_GROWS)
_OPPORTUNITIES = {kind.value for kind in OpportunityKind} & {kind.value for kind in VerdictClass}


def verdict(
    accounts: Sequence[RankTrace],
    findings: Sequence[Finding],
    clocks: Sequence[Clock],
    opportunities: Sequence[Advice] = (),
) -> Verdict:
    """Return the verdict on a set of traces: the most important finding; without findings "healthy" or "unknown".

    A straggler comes first, then the largest loss of time, then a problem with memory. `clocks` show whether the ranks'
    clocks could be compared; `opportunities` are sorted by the time that they save, the largest first.
    """
    by_id = {finding.id: finding for finding in findings if _is_lead(finding)}
    lacks = [_missing_sentence(lack, clocks) for lack in missing(accounts, clocks)]
    for kind in _by_importance(opportunities):
        finding = by_id.get(f"trace.{kind}")
        if finding is not None:
            return Verdict(
                status=status_of(findings),
                kind=kind,
                ranks=finding.ranks,
                sentence=f"{finding.title}; {division(of_ranks(accounts, finding.ranks))}",
                confidence=finding.confidence,
                missing=lacks,
            )
    worked = any(account.device_events for account in accounts) and not (
        _lacks_device(accounts) or _is_excerpt(accounts) or any(map(lacks_kernels, accounts))
    )
    status = status_of(findings)
    return Verdict(
        status=Status.UNKNOWN if status is Status.OK and not worked else status,
        kind=VerdictClass.HEALTHY if worked else VerdictClass.UNKNOWN,
        sentence=division(accounts) if worked else _unknown_reason(accounts),
        confidence=_HEALTHY_CONFIDENCE if worked else 0.0,
        missing=lacks,
    )


def _lacks_device(accounts: Sequence[RankTrace]) -> bool:
    """Return whether only hosts were recorded although there are devices; the time of the devices is then unknown."""
    return all(account.source == "cpu" for account in accounts) and any(
        account.device_name or GPU_TRAINING.search(account.backend or "") for account in accounts
    )


def _is_excerpt(accounts: Sequence[RankTrace]) -> bool:
    return all(account.span_ns < EXCERPT * sum(step.dur_ns for step in account.step_times) for account in accounts)


def _unknown_reason(accounts: Sequence[RankTrace]) -> str:
    if not any(account.device_events for account in accounts):
        return "the trace records no work"
    if _lacks_device(accounts):
        return f"the work of the devices was not recorded, only that of the host; {division(accounts)}"
    if any(map(lacks_kernels, accounts)):
        return f"many kernels are missing in the trace, so its idle times mean nothing; {division(accounts)}"
    return f"the events cover next to nothing of the recorded steps; {division(accounts)}"


def _by_importance(opportunities: Sequence[Advice]) -> list[VerdictClass]:
    """Return the kinds of verdicts in order of importance; the first kind that has a finding becomes the verdict."""
    largest_first = [VerdictClass(row.kind.value) for row in opportunities if row.kind.value in _OPPORTUNITIES]
    return [*_MOST_IMPORTANT, *largest_first, *_ABOUT_MEMORY]


def _is_lead(finding: Finding) -> bool:
    """Return whether a finding may become the verdict; an opportunity that saves only little time may not."""
    return finding.severity is not Severity.INFO or finding.id.removeprefix("trace.") not in _OPPORTUNITIES


def of_ranks(accounts: Sequence[RankTrace], ranks: Sequence[int]) -> Sequence[RankTrace]:
    return [account for account in accounts if account.rank in ranks] or accounts


def division(accounts: Sequence[RankTrace]) -> str:
    """Return a clause on how the time of the device or host with the longest recording divides."""
    longest = max(accounts, key=lambda account: account.span_ns)
    span = longest.span_ns
    source = "the device" if longest.source == "device" else "the host"
    name = source if longest.rank is None else f"rank {longest.rank}"
    return (
        f"in the {duration_ns(span)} recorded, {name} computes {share(longest.compute_ns, span)},"
        f" communicates without computing {share(longest.exposed_communication_ns, span)}"
        f" and idles {share(longest.idle_ns, span)}"
    )


def missing(accounts: Sequence[RankTrace], clocks: Sequence[Clock]) -> list[Missing]:
    """Return the kinds of evidence that the traces lack and that would make the verdict more certain."""
    world = max((account.world_size or 1 for account in accounts), default=1)
    lacks = {
        Missing.CLOCKS: any(not clock.agrees for clock in clocks),
        Missing.STEP_MARKS: any(not account.steps for account in accounts),
        Missing.DEVICE_EVENTS: any(account.source == "cpu" for account in accounts),
        Missing.OTHER_RANKS: len({account.rank for account in accounts}) < world,
    }
    return [lack for lack, holds in lacks.items() if holds]


def _missing_sentence(lack: Missing, clocks: Sequence[Clock]) -> str:
    if lack is Missing.CLOCKS:
        ranks = [clock.rank for clock in clocks if not clock.agrees]
        return f"collectives that fix the clock of {rank_names(ranks)}: there are none, or they contradict each other"
    return _MISSING_SENTENCES[lack]


_MISSING_SENTENCES = {
    Missing.STEP_MARKS: "step marks (call profiler.step() at the end of each step)",
    Missing.DEVICE_EVENTS: "device events (record with the activity of the device, such as ProfilerActivity.CUDA)",
    Missing.OTHER_RANKS: "the traces of the other ranks",
}


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
    last = comparisons[-1] if comparisons else None
    clocks = last.clocks if last else []
    return Report(
        schema=_SCHEMA,
        inputs=[],
        verdict=verdict(accounts, findings, clocks, rows),
        findings=findings,
        data=TraceData(
            ranks=accounts,
            opportunities=rows,
            waits=waits,
            stragglers=stragglers,
            groups=last.groups if last else [],
            axes=axis_waits(last.groups) if last else [],
            meetings=last.longest_waits if last else [],
            clocks=clocks,
        ),
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
    return path_sums(path, account.rank, account.device, step)


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
