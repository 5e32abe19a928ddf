"""Analyze a whole run: `analyze` returns one report from all analyzers on why the run ended or is slow."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import msgspec

from analyzers import store
from analyzers.incident.analyzer_reports import AnalyzerReport, AnalyzerReports, run_analyzers
from analyzers.incident.chain import CRASHED, Event, chain_of
from analyzers.incident.crash import first_crash, is_completed
from analyzers.incident.log_evidence import with_log_evidence
from analyzers.incident.model import IncidentClass, IncidentData
from analyzers.incident.sentences import (
    NO_STEP_LOG,
    Outcome,
    crash_finding,
    launcher_finding,
    link_of,
    outcome_sentence,
    verdict_sentence,
)
from analyzers.logs import LogsData
from analyzers.node_health import find_gaps
from analyzers.report import Finding, Input, Report, Severity, Status, Verdict, ranked, status_of, tool_version
from analyzers.run import Kind, Run, discover

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
    return [
        f
        for f in reports.logs.findings
        if leads or not chain or (f.severity is not Severity.INFO and not explained.issuperset(f.ranks))
    ]


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
    return Verdict(
        status=Status.UNKNOWN if root.kind == IncidentClass.UNKNOWN else status,
        kind=root.kind,
        # Several culprits of one class are all to blame.
        ranks=sorted({rank for event in chain if event.kind == root.kind for rank in event.ranks}),
        sentence=verdict_sentence(chain),
        confidence=max((f.confidence for f in behind), default=_CONFIDENCE_WITHOUT_FINDING),
        missing=missing,
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
    return msgspec.structs.replace(logs.verdict, missing=[*missing, *logs.verdict.missing])


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
