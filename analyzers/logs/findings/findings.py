"""Convert the answer about logs (the cause of the job's end, and the other failures) to findings and the verdict."""

import re
from collections.abc import Sequence
from math import isfinite
from pathlib import PurePath

import msgspec

from analyzers.case.facts import CUT_OFF, EventKind, LogClass, LogEvent, Reason
from analyzers.case.hypothesis import Answer, Case, Certainty, Hypothesis, Tier
from analyzers.case.rows import column, data_share
from analyzers.case.wording import at_line, place, quoted, shortened, who
from analyzers.failures.catalogue import known, shown_by
from analyzers.failures.entry import Failure, headline, next_steps, sentence, write
from analyzers.logs.answers.failures import count_closed, failed_attempts, handled_errors, has_completed
from analyzers.logs.findings.explanations import ENDED_OUTSIDE, evidence, evidence_of, explain, follows, missing
from analyzers.logs.loading import Logs, unread_count
from analyzers.logs.model import LogFile
from analyzers.logs.reading.roster import ROWS_AT_MOST
from analyzers.report import Evidence, Finding, RuledOut, Severity, Status, Verdict
from analyzers.words import figures, full_sentence, joined_sentences, percent, quantity, rank_names, source_line

_CONFIDENCES = {Certainty.SHOWN: 0.9, Certainty.PROBABLE: 0.7, Certainty.SUSPECTED: 0.4}
_HEALTHY_CONFIDENCE, _UNKNOWN_CONFIDENCE = 0.7, 0.2
_CONSEQUENCES_AT_MOST = 8
_PATHS_AND_NUMBERS = re.compile(r"(?:[A-Za-z]:)?[\w.~-]*[/\\][^\s'\"]*|0x[0-9a-f]+|\d+")
_CORE = 60
"""The characters of a message that are compared with the text of another one."""
_RAISED = (EventKind.EXCEPTION, EventKind.OUT_OF_MEMORY, EventKind.CUDA_ERROR)
_END = "the end of the job, which the text does not show"
_OVERFLOWS, _LOSSES_OF_A_COURSE, _MFU_AT_MOST = 3, 2, 100.0
"""The number of skipped steps that is normal while fp16 training finds its loss scale."""
_REPORTERS = {LogClass.TERMINATED: "the launcher", LogClass.TIME_LIMIT: "the scheduler"}


def make_findings(answer: Answer, logs: Logs) -> list[Finding]:
    """Return the findings: the cause, its consequences, and logs that could not be read.

    If there is no cause, skipped steps and handled errors are reported instead.
    """
    found = [_cause_finding(answer.case, answer, logs)] if answer.case else []
    follow = [one for one in answer.explained if answer.case and follows(one, answer.case)]
    apart = [one for one in answer.others if one not in follow and one.role.tier is not Tier.EXIT_CODE]
    found += _others(_of_other_text(follow, answer.case), answer.case, follow=True)
    found += _others(_of_other_text(apart, answer.case), answer.case, follow=False)
    found += [*_overflow_finding(logs), *_handled_finding(logs)] if not answer.case else []
    found += [] if answer.case else _broken_numbers(logs)
    found += _attempts_finding(logs)
    found += _unread_finding(logs, answer.case)
    return found + [unreadable(file) for file in logs.files if file.problem]


def _cause_finding(case: Case, answer: Answer, logs: Logs) -> Finding:
    """Return the finding that reports the cause of the job's end."""
    entry, case = known(case)
    return Finding(
        id=finding_id(case),
        severity=Severity.WARNING if _is_mild(case) else Severity.ERROR,
        title=sentence(entry, case),
        why=explain(write(entry.why, case), case, answer, logs),
        next=_all(next_steps(entry, case)),
        ranks=case.ranks,
        step=case.lead.step,
        evidence=evidence(case, logs),
        confidence=_CONFIDENCES[case.certainty],
    )


def _all(steps: Sequence[str]) -> str:
    """Return the steps as one text."""
    return " ".join(map(full_sentence, steps))


def _is_mild(case: Case) -> bool:
    """Return whether a cause is only worth a warning, because the job itself may have done nothing wrong."""
    if case.kind in (LogClass.DATA_TIME, LogClass.LOSS_SPIKE, LogClass.NEAR_LIMIT, LogClass.RESUME):
        return True
    return case.kind in ENDED_OUTSIDE or (case.kind is LogClass.UNKNOWN and case.lead.kind is EventKind.EXCEPTION)


def _others(failures: Sequence[Hypothesis], case: Case | None, *, follow: bool) -> list[Finding]:
    """Return, in a list, one finding on all failures other than the cause, and whether they follow from it."""
    if not failures:
        return []
    shown = failures[:_CONSEQUENCES_AT_MOST]
    # torchrun's own exception when it gets a signal: no rank raised it.
    reports = [
        f"{who(one.ranks, _REPORTERS.get(one.role.kind, 'a process of the job'))} reported: {quoted(one.lead)}"
        for one in shown
    ]
    if follow:
        count = f"{quantity(len(failures), 'other error')}, usual consequences of it"
        why = "a failure like the one above usually leads to this"
        step = f"fix the failure above first{_first_failure(case)}"
    else:
        count = f"{quantity(len(failures), 'other error')} were reported, too"
        why = ""
        step = "look at this, too"
    return [
        Finding(
            id="logs.consequence" if follow else "logs.also_found",
            severity=Severity.INFO,
            title=reports[0] if len(failures) == 1 else f"{count}; {reports[0]}",
            why=why,
            next=step,
            ranks=sorted({rank for one in failures for rank in one.ranks}),
            step=shown[0].lead.step,
            evidence=[_of_its_ranks(one) for one in shown],
            confidence=0.6 if follow else 0.5,
        )
    ]


def _of_other_text(failures: Sequence[Hypothesis], case: Case | None) -> list[Hypothesis]:
    """Return the failures whose text is no part of the cause's own: a message of several lines may be read twice."""
    if case is None:
        return list(failures)
    own = [" ".join(f"{event.message} {event.details}".split()) for event in case.failure.events]
    cores = [(one, " ".join(quoted(one.lead).rpartition("] ")[2].split())[:_CORE]) for one in failures]
    said = {core for text in own if len(core := text.partition("] ")[2][:_CORE] or text[:_CORE]) > _CORE // 2}
    others = [
        one
        for one, core in cores
        if not core
        or (not any(core in text for text in own) and not any(one_said in quoted(one.lead) for one_said in said))
    ]
    # A process may repeat an error with the name of another temporary file each time.
    texts, ranks = {_without_paths(event.headline) for event in case.failure.events}, set(case.failure.ranks)
    return [
        other
        for other in others
        if other.role.kind is not case.kind
        or not ranks >= set(other.ranks)
        or _without_paths(other.lead.headline) not in texts
    ]


def _without_paths(text: str) -> str:
    """Return a message without its paths, numbers and addresses, by which repetitions of an error differ."""
    return _PATHS_AND_NUMBERS.sub("", text)


def _of_its_ranks(failure: Hypothesis) -> Evidence:
    fact = evidence_of(failure.lead)
    if len(failure.ranks) == 1:
        return msgspec.structs.replace(fact, rank=failure.ranks[0])
    return msgspec.structs.replace(fact, where=rank_names(failure.ranks)) if failure.ranks else fact


def _first_failure(case: Case | None) -> str:
    """Return a reference to the finding on the cause, with its source line, such as ` (logs.oom, train.py:41)`.

    The text is empty without a cause.
    """
    if case is None:
        return ""
    file, _, line = case.lead.source.rpartition(":")
    where = f", {source_line(file, int(line))}" if file else ""
    return f" ({finding_id(case)}{where})"


def finding_id(case: Case) -> str:
    """Return the id of the finding on a cause, such as `logs.oom`; for a failed start the id ends with the reason."""
    detail = f".{case.reason}" if case.kind is LogClass.STARTUP and case.reason else ""
    return f"logs.{case.kind}{detail}"


def _is_beside(broken: Sequence[LogEvent]) -> bool:
    """Return whether the loss and the gradients of these rows are finite, and other numbers are not."""
    return not any(event.facts.reason in (Reason.LOSS, Reason.GRADIENT) for event in broken)


def _for_broken(broken: Sequence[LogEvent]) -> str:
    """Return what to do about numbers that are not finite in a training that went on."""
    if _is_beside(broken):
        return (
            "find what makes these numbers in the first such row (log-probabilities of the model or its reference, an"
            " empty answer), and do not trust the saved model before an evaluation"
        )
    return (
        "look for the batch of the first such row; skip steps whose gradient norm is not finite (torch.isfinite before"
        " optimizer.step()), and do not trust the saved model before an evaluation"
    )


def _broken_numbers(logs: Logs) -> list[Finding]:
    """Return, in a list, the finding on NaN in the rows of a training that went on all the same; else empty."""
    broken = [event for event in logs.events if event.kind is EventKind.NAN]
    if not broken:
        return []
    count = sum(event.count for event in broken)
    of_what = "of a training that completed" if has_completed(logs) else "with finite ones after"
    return [
        Finding(
            id="logs.nonfinite_loss",
            severity=Severity.WARNING,
            title=f"{quantity(count, 'row')} {of_what} {'has' if count == 1 else 'have'} numbers that are not finite",
            why=""
            if _is_beside(broken)
            else "a step whose gradient is not finite either changed all weights to NaN, or was"
            " skipped: later rows show which",
            next=_for_broken(broken),
            ranks=sorted({event.rank for event in broken if event.rank is not None}),
            step=broken[0].step,
            evidence=[evidence_of(event) for event in broken[:_CONSEQUENCES_AT_MOST]],
            confidence=_HEALTHY_CONFIDENCE,
        )
    ]


def _attempts_finding(logs: Logs) -> list[Finding]:
    """Return, in a list, the finding on attempts of the job in the same log that failed before the last one."""
    attempts = failed_attempts(logs)
    if not attempts:
        return []
    ends = ", ".join(str(one.end) for one in attempts[-_CONSEQUENCES_AT_MOST:] if one.end is not None)
    lengths = {one.length for one in attempts}
    is_regular = len(attempts) > 1 and len(lengths) == 1 and None not in lengths
    each = f", each {quantity(attempts[0].length or 0, 'step')} after its start" if is_regular else ""
    lead = attempts[-1].lead
    whose = who([lead.rank] if lead.rank is not None else [], "a process of the job")
    return [
        Finding(
            id="logs.failed_attempts",
            severity=Severity.WARNING,
            title=f"{quantity(len(attempts), 'attempt')} in this log failed before the last one, most recently {whose}:"
            f" {quoted(lead)}{at_line(lead)}",
            why=f"they ended after step {ends}{each}" if ends else "the job was started again after each",
            next="an attempt that always dies after the same number of its own steps points to the data of that"
            " position, or to what is done every so many steps (evaluation, checkpoint): start just before it"
            if is_regular
            else "mend the failure of these attempts, too: it costs the steps since their last checkpoint",
            ranks=sorted({one.lead.rank for one in attempts if one.lead.rank is not None}),
            step=attempts[-1].end,
            evidence=[evidence_of(one.lead) for one in attempts[-_CONSEQUENCES_AT_MOST:]],
            confidence=_HEALTHY_CONFIDENCE,
        )
    ]


def _overflow_finding(logs: Logs) -> list[Finding]:
    """Return, in a list, the finding that many steps were skipped because fp16 gradients overflowed.

    The list is empty if only few steps were skipped.
    """
    skips = [event for event in logs.events if event.kind is EventKind.OVERFLOW_SKIP]
    count = sum(event.count for event in skips)
    if count <= _OVERFLOWS:
        return []
    return [
        Finding(
            id="logs.overflow_skips",
            severity=Severity.INFO,
            title=f"{quantity(count, 'step')} {'was' if count == 1 else 'were'} skipped, as fp16 gradients overflowed",
            why="At the beginning skipped steps are normal: the gradient scaler halves its loss scale until the"
            " gradients fit. Each skipped step leaves the weights as they were.",
            next="check that the loss falls nevertheless. To avoid overflows, train in bfloat16, which needs no loss"
            " scale",
            evidence=[evidence_of(skips[0])],
            confidence=0.8,
        )
    ]


def _handled_title(events: Sequence[LogEvent]) -> str:
    """Return the title on errors that ranks printed and survived, or on work that they say they skipped."""
    ranks = sorted({event.rank for event in events if event.rank is not None})
    is_skipped = all(event.kind is EventKind.SKIPPED_WORK for event in events)
    count = quantity(sum(event.count for event in events), "time" if is_skipped else "error")
    what = f"said {count} that it skips something" if is_skipped else f"reported {count} and went on"
    return f"{who(ranks, 'the job')} {what}: {quoted(events[0])}{place(events[0])}"


def _handled_finding(logs: Logs) -> list[Finding]:
    """Return, in a list, the finding on errors that ranks printed and survived; empty if there are none."""
    events = handled_errors(logs)
    if not events:
        return []
    ranks = sorted({event.rank for event in events if event.rank is not None})
    return [
        Finding(
            id="logs.handled_errors",
            severity=Severity.INFO,
            title=_handled_title(events),
            why="The program printed each error itself, or its log goes on after it.",
            next="nothing to do if these errors are expected; otherwise look at the code that raised them",
            ranks=ranks,
            evidence=[evidence_of(event) for event in events[:_CONSEQUENCES_AT_MOST]],
            confidence=0.8,
        )
    ]


def _unread_finding(logs: Logs, case: Case | None) -> list[Finding]:
    """Return, in a list, the finding that quotes lines which look like errors and are not understood; else empty.

    A line that the answer (`case`) quotes is left out.
    """
    answer = case.quote.rstrip("…") if case and case.lead.message == CUT_OFF else ""
    kept = [(file.path, line) for file in logs.files for line in file.unread]
    quotes = [(path, line) for path, line in kept if not answer or answer not in line.text]
    count = unread_count(logs) - len(kept) + len(quotes)
    if not quotes:
        return []
    is_one = count == 1
    return [
        Finding(
            id="logs.unread",
            severity=Severity.INFO,
            title=f"{quantity(count, 'line')} with the words of an error {'is' if is_one else 'are'} not understood:"
            f" {shortened(quotes[0][1].text)}",
            why=f"No rule of this version reads {'this line' if is_one else 'these lines'}, so it is not known what"
            f" {'it means' if is_one else 'they mean'} for the job. Lines that differ only in numbers count once.",
            next=f"read {'this line' if is_one else 'these lines, the first one first'}"
            + (": the log shows no failure otherwise" if case is None else ""),
            evidence=[
                Evidence(text=f"line {line.line}: {line.text}", source=path)
                for path, line in quotes[:_CONSEQUENCES_AT_MOST]
            ],
            confidence=0.5,
        )
    ]


def unreadable(file: LogFile) -> Finding:
    """Return a finding on a log that could not be read."""
    return Finding(
        id="logs.unreadable",
        severity=Severity.WARNING,
        title=f"the log {PurePath(file.path).name} could not be read",
        why=file.problem,
        next="check that the file was copied whole and that you may read it (`ls -l`)",
        evidence=[Evidence(text=file.problem, source=file.path)],
        confidence=1.0,
    )


def make_verdict(answer: Answer, logs: Logs) -> Verdict:
    """Return the verdict: the cause in one sentence, or, without a failure, whether the training completed."""
    case = answer.case
    if case is None:
        return _without_failure(logs, missing(answer, logs))
    is_unknown = case.kind is LogClass.UNKNOWN
    entry, case = known(case)
    return Verdict(
        status=Status.UNKNOWN if is_unknown else Status.WARNING if _is_mild(case) else Status.ERROR,
        kind=case.kind,
        ranks=case.ranks,
        sentence=sentence(entry, case),
        confidence=_UNKNOWN_CONFIDENCE if is_unknown else _CONFIDENCES[case.certainty],
        missing=missing(answer, logs),
        headline=headline(entry, case),
        finding=finding_id(case),
        failure=entry.id if entry.is_specific else "",
        next=_all(next_steps(entry, case)),
        ruled_out=[
            RuledOut(kind=one.role.kind, because="a usual consequence of the answer") for one in answer.explained
        ],
    )


def _still_running(completed: str, closed: int, lacks: list[str]) -> Verdict:
    """Return the verdict on a job whose training completed, and whose launcher then had to end `closed` processes.

    `completed` is the first clause of the verdict's sentence, `lacks` the evidence that is missing in the logs.
    """
    rest = f"{quantity(closed, 'process')} did not end afterwards: the launcher ended {'it' if closed == 1 else 'them'}"
    return Verdict(
        status=Status.UNKNOWN,
        kind=LogClass.UNKNOWN,
        sentence=f"{completed}, but {rest}",
        confidence=_UNKNOWN_CONFIDENCE,
        missing=[*lacks, "the stacks of the processes that did not end"],
    )


def _is_harmless(entry: Failure) -> bool:
    return entry.kind is LogClass.HEALTHY


def _course(logs: Logs) -> str:
    """Return how the loss went from the first to the last row, after a colon; empty if the rows have none.

    A loss of 0 is usual for a policy gradient: its value is 0 by construction while its gradient is not.
    """
    if (mfu := max(column(logs.rows, "mfu"), default=0.0)) > _MFU_AT_MOST:
        return (
            f": but an MFU of {figures(mfu)} % is impossible: the work of all GPUs is divided by the peak of one, or"
            " the peak is that of another GPU or precision"
        )
    losses, norms = column(logs.rows, "loss"), column(logs.rows, "grad_norm")
    if len(losses) < _LOSSES_OF_A_COURSE or losses[0] == losses[-1] == 0:
        is_of_policy = bool(losses) and not any(losses) and any(norms) and column(logs.rows, "reward_std")
        return ": a loss of 0 is usual for GRPO, and the gradient is not 0" if is_of_policy else ""
    return f": the loss goes from {figures(losses[0])} to {figures(losses[-1])}"


def _so_far(logs: Logs, lacks: list[str]) -> Verdict:
    """Return the verdict on a log whose rows show no problem, and whose end is not in it."""
    steps = [row.step for row in logs.rows if row.step is not None]
    upto = f" up to step {max(steps)}" if steps else ""
    count = quantity(len(logs.rows), "row") if len(logs.rows) < ROWS_AT_MOST else "the first and the last rows"
    odd = sum(not row.is_finite for row in logs.rows)
    return Verdict(
        status=Status.UNKNOWN,
        kind=LogClass.UNKNOWN,
        sentence=f"{odd} of {count}{upto} {'has' if odd == 1 else 'have'} a loss or a gradient that is not finite, and"
        " later ones are finite again; the end of the job is not in the text"
        if odd
        else f"nothing that is tested here is wrong in {count}{upto}{_course(logs)}; the end of the job is not in the"
        " text",
        confidence=_UNKNOWN_CONFIDENCE,
        missing=[*lacks, _END],
        tested=_tested(logs),
    )


def _tested(logs: Logs) -> list[str]:
    """Return what was tested of a log that shows no failure, and how it came out."""
    count = quantity(len(logs.rows), "row") if len(logs.rows) < ROWS_AT_MOST else "the first and the last rows"
    tested = ["known errors and tracebacks: none that ended a rank"]
    for name in ("loss", "grad_norm"):
        numbers = column(logs.rows, name)
        if numbers and all(map(isfinite, numbers)):
            stuck = "" if not any(numbers) else " and not stuck at 0"
            tested.append(f"{name.replace('_', ' ')} is finite{stuck} in {count}")
    share = data_share(logs.rows)
    return [*tested, *([f"{percent(share)} of the time is waiting for data"] if share is not None else [])]


def _without_failure(logs: Logs, lacks: list[str]) -> Verdict:
    """Return the verdict on logs that show no failure: healthy if a log says that training completed, else unknown.

    `lacks` is the evidence that is missing in the logs.
    """
    steps = [r.last_step for r in (*logs.ranks.values(), *logs.unranked) if r.last_step is not None]
    after = f" after step {max(steps)}" if steps else ""
    if has_completed(logs) and (closed := count_closed(logs)):
        return _still_running(f"the training completed{after}", closed, lacks)
    if has_completed(logs) and (broken := [e for e in logs.events if e.kind is EventKind.NAN]):
        rows = quantity(sum(e.count for e in broken), "row")
        return Verdict(
            status=Status.WARNING,
            kind=LogClass.NONFINITE_LOSS,
            sentence=f"the training completed{after}, but {rows} {'has' if rows == '1 row' else 'have'} numbers that"
            f" are not finite: {(broken[0].facts.name or 'NaN').replace(' ', ' is ', 1)} in the first",
            confidence=_HEALTHY_CONFIDENCE,
            missing=lacks,
            headline=f"The training completed, but {rows} {'has' if rows == '1 row' else 'have'} NaN or infinity",
            finding="logs.nonfinite_loss",
            next=full_sentence(_for_broken(broken)),
        )
    if has_completed(logs):
        before = len(failed_attempts(logs))
        odd = unread_count(logs)
        earlier = [event for event in logs.events if event.kind in _RAISED]
        rest = "; its lines show no known failure"
        if earlier:
            rest = f"; {quantity(len(earlier), 'error')} printed before did not end it, first: {quoted(earlier[0])}"
        rest = f", at attempt {before + 1}: {before} failed before" if before else rest
        rest = f"; what {quantity(odd, 'line')} of the log reports is not understood" if odd and not before else rest
        return Verdict(
            status=Status.OK,
            kind=LogClass.HEALTHY,
            sentence=f"the training completed{after}{rest}",
            confidence=_HEALTHY_CONFIDENCE,
            missing=lacks,
            tested=_tested(logs),
        )
    if unread := [line for file in logs.files for line in file.unread]:
        first, count = unread[0], unread_count(logs)
        which = "one line looks" if count == 1 else f"{count} lines look"
        return Verdict(
            status=Status.UNKNOWN,
            kind=LogClass.UNKNOWN,
            sentence=f"{which} like {'an error' if count == 1 else 'errors'} and no rule knows"
            f" {'it' if count == 1 else 'them'}: {shortened(first.text)} (line {first.line})",
            confidence=_UNKNOWN_CONFIDENCE,
            missing=lacks,
        )
    shown_here = (entry for event in logs.events for entry in shown_by(event.message) if _is_harmless(entry))
    if harmless := list(dict.fromkeys(shown_here)):
        heads = [entry.headline if isinstance(entry.headline, str) else entry.what for entry in harmless]
        return Verdict(
            status=Status.UNKNOWN,
            kind=LogClass.UNKNOWN,
            sentence=joined_sentences(heads[:_CONSEQUENCES_AT_MOST]),
            confidence=_UNKNOWN_CONFIDENCE,
            missing=[*lacks, _END],
            failure=harmless[0].id,
            next=_all([step for entry in harmless for step in entry.next[:1] if isinstance(step, str)]),
        )
    if logs.rows:
        return _so_far(logs, lacks)
    if handled := handled_errors(logs):
        return Verdict(
            status=Status.UNKNOWN,
            kind=LogClass.UNKNOWN,
            sentence=f"{_handled_title(handled)}; the end of the job is not in the text",
            confidence=_UNKNOWN_CONFIDENCE,
            missing=[*lacks, _END],
        )
    shown = f" of {rank_names(sorted(logs.ranks))}" if logs.ranks else ""
    after = f" after its last step {max(steps)}" if steps else ""
    return Verdict(
        status=Status.UNKNOWN,
        kind=LogClass.UNKNOWN,
        sentence=f"no line of the logs{shown} is one that is known here as a failure, and they do not show whether the"
        f" job ended{after}",
        confidence=_UNKNOWN_CONFIDENCE,
        missing=lacks,
    )
