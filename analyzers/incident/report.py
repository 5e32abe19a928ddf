"""Analyze a whole run: `analyze` returns one report from all analyzers on why the run ended or is slow."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from os import PathLike
from pathlib import Path

import msgspec

from analyzers import store
from analyzers.hangs import HangClass
from analyzers.incident.analyzer_reports import AnalyzerReport, AnalyzerReports, run_analyzers, with_log_evidence
from analyzers.incident.chain import (
    CRASHED,
    LOST,
    Crash,
    Event,
    Waiting,
    chain_of,
    first_crash,
    is_completed,
    is_outlived,
)
from analyzers.incident.model import IncidentClass, IncidentData, Link
from analyzers.logs import LogsData
from analyzers.node_health import find_gaps
from analyzers.report import (
    Evidence,
    Finding,
    Input,
    Report,
    Severity,
    Status,
    Verdict,
    ranked,
    status_of,
    tool_version,
)
from analyzers.run import Kind, Run, discover
from analyzers.words import (
    agree,
    capitalised,
    exit_reason,
    joined_sentences,
    numbered,
    process_group,
    quantity,
    rank_names,
    source_line,
)


class Outcome(StrEnum):
    """The end of a run for which no cause of a problem was found; `RUNNING` if it has not ended."""

    FAILED = "failed"
    INTERRUPTED = "interrupted"
    COMPLETED_WITHOUT_STEP = "completed_without_step"
    COMPLETED = "completed"
    RUNNING = "running"
    NOT_RECORDED = "not_recorded"
    ENDED_CLEANLY = "ended_cleanly"
    GAVE_UP = "gave_up"
    """Ranks timed out, or dumps were taken, and nothing shows for which rank they waited."""


_OUTCOMES = {
    Outcome.FAILED: "the run failed, and nothing recorded shows why",
    Outcome.INTERRUPTED: "the run was interrupted, and nothing recorded shows why",
    Outcome.COMPLETED_WITHOUT_STEP: "the run ended without one step: its status is completed, but nothing shows that it"
    " trained",
    Outcome.COMPLETED: "the run completed",
    Outcome.RUNNING: "the run is in progress",
    Outcome.NOT_RECORDED: "no problem was recorded",
    Outcome.ENDED_CLEANLY: "",
    Outcome.GAVE_UP: "",
}
NO_STEP_LOG = "a step log, which would show the steps"


def link_of(event: Event) -> Link:
    """Return an event with its sentence as a `Link`, the form in which the JSON document lists it."""
    return Link(
        text=capitalised(_text_of(event)), kind=event.kind, ranks=event.ranks, step=event.step, findings=event.findings
    )


def _text_of(event: Event) -> str:
    """Return the sentence of an event."""
    if event.waiting:
        return waiting_text(event.waiting)
    if event.launcher is not None:
        return _launcher_text(event.launcher)
    return _crash_text(event.crash) if event.crash else event.title


def _launcher_text(launcher: Mapping[str, object]) -> str:
    """Return the sentence on a launcher that was killed; `launcher` is the field of that name in `run.json`.

    For example `launcher lost: process 71 on n1 was killed, and its guard ended 4 processes of the job`.
    """
    pid, host, ended = (launcher.get(name) for name in ("pid", "host", "ended_processes"))
    rest = f", and its guard ended {quantity(ended, 'process')} of the job" if isinstance(ended, int) else ""
    return f"launcher lost: process {pid} on {host} was killed{rest}"


def waiting_text(waiting: Waiting, *, with_operation: bool = True) -> str:
    """Return a phrase on victims that wait: `ranks 0-2 wait in all_reduce #412 of process group dp for it`.

    If only some of them wait in this operation, it is `ranks 0-2 wait for it, 1 of them in all_reduce #412 of ...`. The
    culprit is only called `it` or `them`, because the text before the phrase names it. Without `with_operation` the
    operation is left out.
    """
    victims, operation = waiting.culprit.victims, waiting.operation
    verb, whom = agree(victims, "waits", "wait"), agree(waiting.culprit.ranks, "it", "them")
    if operation is None or not with_operation:
        return f"{rank_names(victims)} {verb} for {whom}"
    where = f"in {numbered(operation.operation, operation.seq)} of {process_group(waiting.group)}"
    if waiting.count < len(victims):
        return f"{rank_names(victims)} {verb} for {whom}, {waiting.count} of them {where}"
    return f"{rank_names(victims)} {verb} {where} for {whom}"


def launcher_finding(launcher: Mapping[str, object]) -> Finding:
    """Return the finding about a launcher that was killed; `launcher` is the field of that name in `run.json`."""
    return Finding(
        id=LOST,
        severity=Severity.ERROR,
        title=_launcher_text(launcher),
        why="the launcher ended without recording a signal, as only SIGKILL ends a process: it records signals that"
        " it can catch",
        next=f"look for the kernel's out-of-memory killer on {launcher.get('host')} (dmesg), or for a limit of the"
        " scheduler; to end a job by hand use Ctrl-C or SIGTERM",
        evidence=[Evidence(text=_launcher_text(launcher), source="run.json")],
        confidence=0.9,
    )


def _crash_text(crash: Crash) -> str:
    """Return a sentence on an exception: `rank 1 failed with ValueError: no tokens in load (me/data.py:3)`."""
    name = rank_names(crash.ranks) if crash.ranks else "a rank"
    did = "gave up waiting for a different rank" if crash.is_symptom else "failed"
    where = f" in {crash.line.name} ({source_line(crash.line.filename, crash.line.line)})" if crash.line else ""
    if not crash.message:
        return f"{name} {did}{where}, and the error is not recorded"
    return f"{name} {did}{':' if crash.is_symptom else ' with'} {crash.message}{where}"


def crash_finding(crash: Crash) -> Finding:
    """Return the finding about an uncaught exception."""
    if crash.is_symptom:
        why = "a different rank died or did not arrive, and no dump shows which"
        step = (
            "read the logs of the other ranks; start the next run with `workbench launch -- COMMAND`: it leaves dumps"
            " that show for which rank the others wait"
        )
    else:
        why = "it is the earliest error that any rank reported"
        step = crash.exit_file.hint or "read the traceback in the error file, and the rank's log beside it"
    line = f"{crash.line.filename}:{crash.line.line}" if crash.line else ""
    return Finding(
        id=CRASHED,
        severity=Severity.ERROR,
        title=_crash_text(crash),
        why=why,
        next=step,
        ranks=crash.ranks,
        evidence=[Evidence(text=crash.message, source=crash.source, line=line)],
        confidence=0.8,
    )


def verdict_sentence(chain: Sequence[Event]) -> str:
    """Return the sentence on the root cause, which is the first event of `chain`, and on the ranks that wait for it."""
    root = chain[0]
    victims = next((event.waiting for event in chain[1:3] if event.kind == IncidentClass.WAITING), None)
    if victims is None:
        return _text_of(root)
    return f"{_text_of(root)}; {waiting_text(victims, with_operation=not _names_operation(root, victims))}"


def _names_operation(root: Event, waiting: Waiting) -> bool:
    """Return whether the sentence of the root cause (`root`) already names the operation that its victims wait in."""
    culprit, operation = root.culprit, waiting.operation
    # These titles name the culprit's line or memory, not the operation.
    if culprit is None or operation is None or culprit.out_of_memory or culprit.kind is HangClass.SLOW:
        return False
    return (culprit.group, culprit.seq, culprit.operation) == (operation.group, operation.seq, operation.operation)


def outcome_sentence(outcome: Outcome, manifest: Mapping[str, object], analyzer_sentence: str = "") -> str:
    """Return a sentence on the end of a run for which no cause of a problem was found.

    If the run failed or was interrupted, the sentence has the exit codes in `run.json` (`manifest`). Otherwise it has
    `analyzer_sentence`, the verdict of one analyzer, such as the verdict on memory (may be empty).
    """
    codes = manifest.get("exit_codes") if outcome in (Outcome.FAILED, Outcome.INTERRUPTED) else None
    if isinstance(codes, dict) and codes:
        listed = ", ".join(f"rank {rank}: {code}" for rank, code in codes.items())
        return f"{_OUTCOMES[outcome]} (exit codes {listed})"
    code = manifest.get("exit_code")
    if outcome is Outcome.FAILED and isinstance(code, int):
        return f"{_OUTCOMES[outcome]}: the command ended with {exit_reason(code)}, and which rank failed is unknown"
    return joined_sentences([text for text in (_OUTCOMES[outcome], analyzer_sentence) if text])


_SCHEMA = "workbench.incident/1"
_UNKNOWN_CONFIDENCE = 0.2
_CONFIDENCE_WITHOUT_FINDING = 0.7
_CONFIDENCE_WITHOUT_REPORT = 0.3


def analyze(run: Run | str | PathLike[str], options: store.Options | None = None) -> Report[IncidentData]:
    """Return why a run ended or is slow, as a report with the verdict on the first cause and all analyzers' findings.

    `run` is a run folder, or the result of `analyzers.run.discover` for one. Each analyzer reads its own artefacts; if
    one fails, `verdict.missing` names it and the others still answer. `data.chain` leads from the first cause to the
    last effect.

    Example:
        report = analyze("outputs")
        report.verdict.sentence  # "Rank 1 ran out of memory at step 6 in ...; rank 0 waits in ... for it"
        [(link.kind, link.ranks) for link in report.data.chain]  # [("oom", [1]), ("waiting", [0])]

    Raises:
        InputError: There is no such path, or nothing of a known kind in it.
    """
    run = run if isinstance(run, Run) else discover(Path(run))
    reports = run_analyzers(run, options or store.Options())
    crash = first_crash(run)
    chain = chain_of(reports, crash, run.manifest())
    gaps = find_gaps(run, reports.hang.data.world_size if reports.hang else 0).phrases()
    findings = [f for name, report in reports.by_name().items() if name != "logs" for f in report.findings]
    findings += _log_findings(reports, chain)
    findings += [crash_finding(crash)] if crash and chain and chain[0].findings == [CRASHED] else []
    findings += [launcher_finding(e.launcher) for e in chain if e.launcher is not None]
    findings += [*reports.not_finite, *reports.unreadable]
    return Report(
        schema=_SCHEMA,
        version=tool_version(),
        inputs=inputs(run, reports),
        verdict=verdict(reports, chain, run.manifest(), findings, gaps),
        findings=_in_order_of(chain, with_log_evidence(findings, reports)),
        data=IncidentData(
            memory=reports.memory.data if reports.memory else None,
            hang=reports.hang.data if reports.hang else None,
            trace=reports.trace.data if reports.trace else None,
            steps=reports.steps.data if reports.steps else None,
            logs=reports.logs.data if reports.logs else None,
            chain=[link_of(event) for event in chain],
        ),
    )


def _log_findings(reports: AnalyzerReports, chain: Sequence[Event]) -> list[Finding]:
    """Return the findings on text logs that the report shows; `chain` is the causal chain of the run.

    If the chain comes from other analyzers, only findings about ranks outside of the chain are returned: log lines
    about ranks in the chain become evidence of the chain's own findings.
    """
    if reports.logs is None:
        return []
    leads = any(name.startswith("logs.") for event in chain for name in event.findings)
    if reports.ended_cleanly and not leads:
        return [msgspec.structs.replace(finding, severity=Severity.INFO) for finding in reports.logs.findings]
    explained = {rank for event in chain for rank in event.ranks}
    shown = [
        f
        for f in reports.logs.findings
        if leads or not chain or (f.severity is not Severity.INFO and not explained.issuperset(f.ranks))
    ]
    ranks = reports.logs.verdict.ranks
    return shown if leads or not is_outlived(reports, ranks) else [*shown, _outlived(reports.logs.findings[0], ranks)]


def _outlived(printed: Finding, ranks: Sequence[int]) -> Finding:
    """Return the finding on an error that ranks printed and caught: at the end they only waited for another rank."""
    said = printed.evidence[0].text if printed.evidence else printed.title
    return msgspec.structs.replace(
        printed,
        id="logs.handled_errors",
        severity=Severity.INFO,
        title=f"{rank_names(ranks)} printed an error and went on: {said}",
        why="at the end the rank only waited for another one, as its dump shows: this error did not end the run",
        next="nothing to do if this error is expected; otherwise look at the code that raised it",
        confidence=0.8,
    )


def _in_order_of(chain: Sequence[Event], findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of the causal chain in the order of the chain, then all others, the most severe first."""
    ids = [name for event in chain for name in event.findings]
    return sorted(ranked(findings), key=lambda f: ids.index(f.id) if f.id in ids else len(ids))


def verdict(
    reports: AnalyzerReports,
    chain: Sequence[Event],
    manifest: Mapping[str, object],
    findings: Sequence[Finding],
    gaps: Sequence[str],
) -> Verdict:
    """Return the verdict on the run, with the class and ranks of the first cause in `chain`.

    `findings` are the findings of the whole report, `manifest` is the content of `run.json`. `gaps` has phrases on
    nodes that did not send all of their files.
    """
    lacks = [lack for report in _reports_behind(reports, chain) for lack in report.verdict.missing]
    missing = [*reports.problems, *(lack for lack in gaps if lack not in lacks), *lacks]
    if not chain:
        return _uneventful(reports, manifest, missing)
    root = chain[0]
    behind = [f for f in findings if f.id in root.findings]
    # A cause without a finding of its own is a rank that failed.
    status = status_of(behind) if behind else Status.ERROR
    answer = next((f for name in root.findings for f in behind if f.id == name), None)
    by_logs, by_dumps = (
        report.verdict if report and answer and answer.id == report.verdict.finding else None
        for report in (reports.logs, reports.hang)
    )
    entry = by_logs or by_dumps
    return Verdict(
        status=Status.UNKNOWN if root.kind == IncidentClass.UNKNOWN else status,
        kind=root.kind,
        # Several culprits of one class are all to blame.
        ranks=sorted({rank for event in chain if event.kind == root.kind for rank in event.ranks}),
        sentence=verdict_sentence(chain),
        confidence=max((f.confidence for f in behind), default=_CONFIDENCE_WITHOUT_FINDING),
        missing=missing,
        headline=by_logs.headline if by_logs else _text_of(root),
        finding=answer.id if answer else "",
        failure=entry.failure if entry else "",
        next=answer.next if answer else "",
        ruled_out=by_logs.ruled_out if by_logs else [],
    )


def _reports_behind(reports: AnalyzerReports, chain: Sequence[Event]) -> list[AnalyzerReport]:
    """Return the reports that the findings of the causal chain come from; all reports if the chain is empty."""
    names = {finding.partition(".")[0] for event in chain for finding in event.findings}
    if names and reports.hang and reports.hang.verdict.status is Status.UNKNOWN:
        # Dumps that were lost or damaged may be the reason why another analyzer answers.
        names.add("hang")
    return [report for name, report in reports.by_name().items() if not names or name in names]


def _uneventful(reports: AnalyzerReports, manifest: Mapping[str, object], missing: list[str]) -> Verdict:
    """Return the verdict on a run for which no cause of a problem was found.

    The verdict is healthy, unknown, or the verdict of the text logs. `missing` lists the evidence that was missing for
    the analyzers; it becomes part of the verdict. `manifest` is the content of `run.json`.
    """
    outcome = _outcome_of(reports, manifest)
    # Whether the job hangs or ended is said before what its steps or memory were like.
    first = [reports.hang] if outcome in (Outcome.ENDED_CLEANLY, Outcome.GAVE_UP) else []
    every = (*first, reports.steps, reports.memory, reports.trace, reports.hang)
    available: list[AnalyzerReport] = [r for r in every if r is not None]
    is_unrecorded = outcome in (Outcome.NOT_RECORDED, Outcome.GAVE_UP)
    if reports.logs and is_unrecorded and (not available or _is_open(reports.logs) or _is_text_alone(reports)):
        return _of_logs(reports.logs, missing)
    sentence = outcome_sentence(outcome, manifest, available[0].verdict.sentence if available else "")
    if outcome in (Outcome.FAILED, Outcome.INTERRUPTED, Outcome.COMPLETED_WITHOUT_STEP, Outcome.GAVE_UP):
        sentence = sentence if outcome is Outcome.GAVE_UP else outcome_sentence(outcome, manifest)
        missing = [*missing, NO_STEP_LOG] if outcome is Outcome.COMPLETED_WITHOUT_STEP else missing
        return Verdict(
            status=Status.UNKNOWN,
            kind=IncidentClass.UNKNOWN,
            sentence=sentence,
            confidence=_UNKNOWN_CONFIDENCE,
            missing=missing,
        )
    if outcome is Outcome.NOT_RECORDED and available and not any(map(is_known, available)):
        return msgspec.structs.replace(available[0].verdict, missing=missing)
    is_healthy = bool(available) or outcome is Outcome.COMPLETED
    return Verdict(
        status=Status.OK if is_healthy else Status.UNKNOWN,
        kind=IncidentClass.HEALTHY if is_healthy else IncidentClass.UNKNOWN,
        sentence=sentence,
        confidence=max((r.verdict.confidence for r in available), default=_CONFIDENCE_WITHOUT_REPORT),
        missing=missing,
    )


def _is_text_alone(reports: AnalyzerReports) -> bool:
    """Return whether everything that is known about a run, including its steps, comes from printed text.

    Text does not show the state of the ranks, so such a run may hang although no line says so.
    """
    others = set(reports.by_name()) - {"logs", "steps"}
    return not others and all(
        given.kind in (Kind.LOG, Kind.TEXT) for given in (reports.steps.inputs if reports.steps else ())
    )


def is_known(report: AnalyzerReport) -> bool:
    """Return whether a report shows how its part of the run went; a snapshot without a history does not."""
    return report.verdict.status is not Status.UNKNOWN


def _is_open(logs: Report[LogsData]) -> bool:
    """Return whether the logs have an error as a finding; such a run is not healthy, even without a known cause."""
    return any(finding.severity is Severity.ERROR for finding in logs.findings)


def _of_logs(logs: Report[LogsData], missing: list[str]) -> Verdict:
    """Return the verdict of the text logs as the verdict on the run, because no other analyzer shows how the run went.

    `missing` lists the evidence that has been missing so far; it is put before the list of the logs' own verdict.
    """
    return msgspec.structs.replace(logs.verdict, missing=list(dict.fromkeys([*missing, *logs.verdict.missing])))


def _outcome_of(reports: AnalyzerReports, manifest: Mapping[str, object]) -> Outcome:
    """Return how a run ended, by the status in `run.json` and the findings of the hang analyzer.

    A run that completed without any step has an outcome of its own.
    """
    status = manifest.get("status")
    if is_completed(manifest):
        # A job without an optimizer has no steps, but its ranks met in a process group and marked their ends.
        trained = _has_steps(reports, manifest) or reports.ended_cleanly
        return Outcome.COMPLETED if trained else Outcome.COMPLETED_WITHOUT_STEP
    known = (Outcome.FAILED, Outcome.INTERRUPTED, Outcome.RUNNING)
    recorded = next((outcome for outcome in known if outcome == status), Outcome.NOT_RECORDED)
    if recorded is not Outcome.NOT_RECORDED or reports.hang is None:
        return recorded
    if reports.hang.verdict.status is Status.UNKNOWN:
        return Outcome.GAVE_UP
    return Outcome.ENDED_CLEANLY if reports.ended_cleanly else recorded


def _has_steps(reports: AnalyzerReports, manifest: Mapping[str, object]) -> bool:
    """Return whether anything shows that the run trained: a last step in `run.json`, a step log, or other recordings.

    A script that does nothing ends with the status "completed" too.
    """
    # Any job prints something, so that its text does not count.
    recorded = [name for name in reports.by_name() if name != "logs"]
    return bool(manifest.get("last_step") or reports.steps or (recorded and not reports.has_empty_step_logs))


def inputs(run: Run, reports: AnalyzerReports) -> list[Input]:
    """Return the files that the analyzers read, and the files about the run itself."""
    # Two reports may read one file, such as a step log.
    read = {given.path: given for report in reports.existing() for given in report.inputs}
    own = run.of(Kind.MANIFEST, Kind.ERROR, Kind.EXIT, Kind.COLLECTION, Kind.NOT_FINITE)
    return [*read.values(), *(artefact.as_input() for artefact in own)]
