"""Write the sentences about a whole run: on the events in its chain, in its findings, and in its verdict."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

from analyzers.hangs import HangClass
from analyzers.incident.chain import CRASHED, LOST, Event, Waiting
from analyzers.incident.crash import Crash
from analyzers.incident.model import IncidentClass, Link
from analyzers.report import Evidence, Finding, Severity
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
