"""Make the report on a proof: whether the run fits with the advice, and the error of the predicted memory."""

import shlex

from analyzers.report import Evidence, Finding, Report, Severity, Verdict, status_of, tool_version
from analyzers.report import Status as Light
from analyzers.words import percent, quantity, signed_percent, size
from workbench.commands.prove.recorded_run import RecordedRun
from workbench.proof_data import Basis, Considered, ProofData, Rerun, Settings

_AT_LEAST = "the request that failed may come before the peak: the prediction is what that request would need"


def proof_report(run: RecordedRun, data: ProofData) -> Report[ProofData]:
    """Return the report on a proof, with its verdict and its only finding."""
    findings, kind = [finding(run, data)], kind_of(data)
    return Report(
        schema="workbench.proof/1",
        version=tool_version(),
        inputs=[],
        verdict=Verdict(
            status=status_of(findings) if kind in ("proved", "disproved") else Light.UNKNOWN,
            kind=kind,
            ranks=findings[0].ranks,
            sentence=findings[0].title,
            confidence=findings[0].confidence,
            missing=[_AT_LEAST] if data.basis is Basis.FAILED_REQUEST and data.rerun else [],
        ),
        findings=findings,
        data=data,
    )


def kind_of(data: ProofData) -> str:
    if data.rerun is None:
        return "not_applied"
    if data.is_proved:
        return "proved"
    return "inconclusive" if data.had_room or data.is_unmeasured else "disproved"


def finding(run: RecordedRun, data: ProofData) -> Finding:
    """Return the finding of a proof: the advice works, the advice does not work, or no advice was applied."""
    if data.rerun is None or data.applied is None:
        return not_applied(run, data)
    if data.is_unmeasured:
        return _unmeasured(run, data.rerun, data.applied)
    if data.had_room:
        return inconclusive(run, data, data.rerun, data.applied)
    passed, measured = data.rerun.passed, data.rerun.peak_bytes
    change = in_words(data.applied.changes)
    measured_text = "nothing" if measured is None else f"{size(measured)}{_excess_phrase(data)}"
    return Finding(
        id="proof.proved" if passed else "proof.disproved",
        severity=Severity.INFO if passed else Severity.ERROR,
        title=f"With {change} the run fits: {quantity(data.rerun.steps, 'step')} ran under the same limit"
        if passed
        else f"With {change} the run still fails",
        why=f"Predicted {at_least(data)}{size(data.applied.predicted_bytes)}, measured {measured_text}; tensors had"
        f" room for {size(data.room_bytes)}."
        + (f" The settings as they were need {size(data.needed_bytes)}." if data.needed_bytes else ""),
        next=f"Set {change} in the job."
        if passed
        else f"Look at the second run: workbench inspect {data.rerun.folder}",
        ranks=[] if run.device.rank is None else [run.device.rank],
        step=run.device.oom.step if run.device.oom else run.device.step,
        evidence=[Evidence(text=shlex.join(data.rerun.command), source=data.rerun.folder)],
        confidence=1.0,
    )


def _unmeasured(run: RecordedRun, rerun: Rerun, applied: Considered) -> Finding:
    """Return the finding that a second run showed nothing on the advice, because none of its memory was measured."""
    ended = "ended without an error" if rerun.passed else "failed"
    return Finding(
        id="proof.inconclusive",
        severity=Severity.WARNING,
        title=f"With {in_words(applied.changes)} the second run {ended} after {quantity(rerun.steps, 'step')}, and none"
        " of its memory was measured",
        why="A proof needs a finished step and a memory snapshot of it. The second run left neither."
        if rerun.peak_bytes is None and rerun.steps == 0
        else "A proof needs a finished step and a memory snapshot of it.",
        next=f"Look at the second run: workbench inspect {rerun.folder}. On a CPU, snapshots are written by"
        " `workbench.recorders.MemoryRecorder` in the script.",
        ranks=[] if run.device.rank is None else [run.device.rank],
        evidence=[Evidence(text=shlex.join(rerun.command), source=rerun.folder)],
        confidence=0.6,
    )


def inconclusive(run: RecordedRun, data: ProofData, rerun: Rerun, applied: Considered) -> Finding:
    """Return the finding that a second run failed although its tensors had room, which says nothing on the advice."""
    on_host = bool(run.limits)
    return Finding(
        id="proof.inconclusive",
        severity=Severity.WARNING,
        title=f"With {in_words(applied.changes)} the second run failed after {quantity(rerun.steps, 'step')}, but not"
        " for the size of its tensors",
        why=f"Its tensors took {size(rerun.peak_bytes or 0)} at most, and in the first run {size(data.room_bytes)} were"
        " there for them." + (" On a CPU, glibc keeps freed memory, and recording takes some." if on_host else ""),
        next=f"Look at the second run: workbench inspect {rerun.folder}."
        + (
            " If it ran out of memory, set MALLOC_MMAP_THRESHOLD_=131072, so that freed tensors leave the process, and"
            " prove again."
            if on_host
            else ""
        ),
        ranks=[] if run.device.rank is None else [run.device.rank],
        evidence=[Evidence(text=shlex.join(rerun.command), source=rerun.folder)],
        confidence=0.6,
    )


def at_least(data: ProofData) -> str:
    return "at least " if data.basis is Basis.FAILED_REQUEST else ""


def _excess_phrase(data: ProofData) -> str:
    """Return a phrase such as ` (+5.2 %, more than the margin of 5 %)` on how far a peak is from its prediction."""
    if data.excess is None:
        return ""
    relation = "within" if data.is_within_margin else "more than"
    margin = "" if data.margin is None else f", {relation} the margin of {percent(data.margin)}"
    return f" ({signed_percent(data.excess)}{margin})"


def not_applied(run: RecordedRun, data: ProofData) -> Finding:
    smallest = min((one.predicted_bytes for one in data.considered), default=None)
    room = size(data.room_bytes)
    needs = f" The settings as they were need {size(data.needed_bytes)} of {room}." if data.needed_bytes else ""
    compared = (
        f" Of {quantity(len(data.considered), 'change')} the smallest needs {size(smallest)} of {room}."
        if smallest is not None
        else ""
    )
    return Finding(
        id="proof.not_applied",
        severity=Severity.WARNING,
        title=f"No advice was applied: {data.not_applied}",
        why=f"{needs}{compared}".strip() or "No setting was changed, and the job was not run again.",
        next=data.instead or "Use more ranks or a smaller model.",
        ranks=[] if run.device.rank is None else [run.device.rank],
        evidence=[Evidence(text=f"room for tensors {room}", source=str(run.folder))],
        confidence=0.8,
    )


def in_words(change: Settings) -> str:
    """Return changed settings as a phrase: `activation_checkpoint.mode = full, training.local_batch_size = 4`."""
    return ", ".join(f"{key} = {value}" for key, value in change.items())
