"""The answer: verdict, why, what to do next."""

from typing import Any

from rich.text import Text
from textual.widgets import Static

from analyzers.report import Report
from workbench.colours import STATUS_SIGNS, STATUSES
from workbench.console import clean


class VerdictBanner(Static):
    """Verdict, Why, Next and what was missing, as text that wraps."""

    DEFAULT_CSS = "VerdictBanner { height: auto; padding: 0 1; border-left: thick $primary; }"

    def __init__(self, report: Report[Any]) -> None:
        super().__init__(banner(report))


def banner(report: Report[Any]) -> Text:
    verdict, first = report.verdict, report.lead()
    colour = STATUSES[verdict.status]
    lines = [
        Text.assemble(
            (f"{STATUS_SIGNS[verdict.status]} {clean(verdict.kind).replace('_', ' ')}  ", f"bold {colour}"),
            (clean(verdict.sentence), "bold"),
        )
    ]
    if first:
        lines += [labelled("Why ", first.why), labelled("Next", first.next)]
    lines += [labelled("Lack", gap) for gap in verdict.missing]
    return Text("\n").join(lines)


def labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label}  ", "dim"), clean(text))
