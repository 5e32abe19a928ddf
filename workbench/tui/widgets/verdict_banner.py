"""A banner with the verdict of a report, its reason, and the next step."""

from rich.text import Text
from textual.widgets import Static

from analyzers.report import Report
from workbench.colours import STATUS_SIGNS, STATUSES
from workbench.console import clean


class VerdictBanner(Static):
    """The verdict, its reason, the next step and the missing evidence, as text that wraps."""

    DEFAULT_CSS = "VerdictBanner { height: auto; padding: 0 1; border-left: thick $primary; }"

    def __init__(self, report: Report[object]) -> None:
        super().__init__(banner(report))
        self.styles.border_left = ("thick", STATUSES[report.verdict.status])


def banner(report: Report[object]) -> Text:
    """Return the verdict, its reason, the next step and the missing evidence as text."""
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
    lines += [labelled("Gap ", gap) for gap in verdict.missing]
    return Text("\n").join(lines)


def labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label}  ", "dim"), clean(text))
