"""Get the workbench's answer about a job, and compare it with the answer that the case expects."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec

from analyzers import run, store
from analyzers.errors import WorkbenchError
from analyzers.incident import analyze
from analyzers.report import Finding, Severity
from benchmarks.zoo.cases import Case

NO_CULPRIT = {"unknown", "collective_timeout", "network", "terminated"}
"""Classes of verdicts that report a failure without a culprit."""


class Hit(StrEnum):
    """The result of comparing an answer with the expected one."""

    RIGHT = "right"
    OPEN = "open"
    """The answer says less than the script's header, but all that the logs show.

    Of a healthy job, it reports no failure, but also not that the job ended well. Of others, the header allows the
    answer.
    """
    RANKS_ONLY = "ranks only"
    AMONG = "among"
    """The class is right, and the culprit is one of two or more ranks that are named."""
    SILENT = "silent"
    WRONG = "wrong"


class Answer(msgspec.Struct, frozen=True):
    """The verdict of `workbench inspect`, and the lines of the script that the verdict or its findings name."""

    status: str
    kind: str
    ranks: list[int]
    sentence: str
    lines: list[int]
    has_errors: bool = False
    """Whether one of the findings has the severity error."""

    def hit(self, case: Case, *, by_logs: bool = False) -> Hit:
        """Return the result of comparing this answer with the expected one; `by_logs`: the job left only logs.

        It is SILENT if no rank is named although a rank is the culprit, even if the class is right. For a healthy job,
        `unknown` without ranks is OPEN, because torchrun prints nothing about a job that ended well.
        """
        ranks = case.culprits is None or tuple(self.ranks) in case.culprits
        if case.is_healthy and (self.status == "error" or self.has_errors):
            return Hit.WRONG
        if self.kind in case.classes and ranks:
            return Hit.RIGHT
        if self.is_open(case, by_logs=by_logs):
            return Hit.OPEN
        if not self.ranks and self.kind in NO_CULPRIT | case.classes:
            return Hit.SILENT
        if ranks and case.culprits and self.ranks:
            return Hit.RANKS_ONLY
        is_among = any(set(self.ranks) > set(culprits) > set() for culprits in case.culprits or ())
        return Hit.AMONG if is_among and self.kind in case.classes else Hit.WRONG

    def is_open(self, case: Case, *, by_logs: bool) -> bool:
        """Return whether the answer says less than expected, but everything that the evidence shows."""
        is_allowed = by_logs and (self.kind, tuple(self.ranks)) in case.from_logs
        return is_allowed or (case.is_healthy and self.kind == "unknown" and not self.ranks)

    def names_line(self, case: Case) -> bool | None:
        """Return whether a line marked in the script is named; None if no line is marked."""
        return bool(case.lines & set(self.lines)) if case.lines else None


def answer(folder: Path, script: str) -> Answer:
    """Return the answer of `workbench inspect FOLDER`."""
    try:
        report = analyze(run.discover(folder), store.Options(cache=False))
    except WorkbenchError as error:
        return Answer("unknown", "unknown", [], str(error), [])
    said = report.verdict
    texts = [said.sentence, *(text for finding in report.findings for text in texts_of(finding))]
    has_errors = any(finding.severity is Severity.ERROR for finding in report.findings)
    return Answer(
        str(said.status), str(said.kind), list(said.ranks), said.sentence, lines_in(texts, script), has_errors
    )


def texts_of(finding: Finding) -> Sequence[str]:
    """Return the texts of a finding and of its evidence."""
    return [finding.title, finding.why, finding.next, *map(str, finding.evidence)]


def lines_in(texts: Sequence[str], script: str) -> list[int]:
    """Return the line numbers of the script that the texts name, as `script.py:12` or in a Python traceback."""
    pattern = re.compile(rf'{re.escape(script)}(?::|", line )(\d+)')
    return sorted({int(number) for text in texts for number in pattern.findall(text)})


@dataclass(frozen=True)
class Outcome:
    """A case, the form in which it ran, and the answer."""

    case: Case
    form: str
    answer: Answer
    seconds: float
