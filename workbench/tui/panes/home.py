"""The answer and the findings behind it."""

from typing import Any

import msgspec
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from analyzers.report import Finding, Report
from analyzers.wording import ranges
from workbench.console import clean
from workbench.palette import SEVERITIES, SEVERITY_SIGNS
from workbench.tui.widgets.verdict import VerdictBanner


class HomePane(Vertical):
    """Verdict banner above the list of findings; the highlighted one is told in full."""

    def __init__(self, report: Report[Any]) -> None:
        super().__init__()
        self._report = report

    def compose(self) -> ComposeResult:
        yield VerdictBanner(self._report)
        yield OptionList(*(Option(title(f), id=str(i)) for i, f in enumerate(self._report.findings)), id="findings")
        with VerticalScroll(id="finding"):
            yield Static(Text("nothing out of line was found", style="dim"), id="finding-text")

    def chosen(self) -> str:
        """The highlighted finding as JSON."""
        at = self.query_one(OptionList).highlighted
        return "" if at is None else msgspec.json.encode(self._report.findings[at]).decode()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        finding = self._report.findings[event.option_index]
        self.query_one("#finding-text", Static).update(told(finding))


def title(finding: Finding) -> Text:
    ranks = f"  rank {ranges(finding.ranks)}" if finding.ranks else ""
    sign = (f"{SEVERITY_SIGNS[finding.severity]} ", SEVERITIES[finding.severity])
    return Text.assemble(sign, clean(finding.title), (f"{ranks}  {finding.id}", "dim"))


def told(finding: Finding) -> Text:
    """A finding with why, next and its evidence."""
    lines = [
        Text(clean(finding.title), style="bold"),
        Text(clean(finding.why)),
        Text.assemble(("Next  ", "dim"), (clean(finding.next), "bold")),
        *(Text(f"- {clean(fact.text)}  {clean(fact.line)}", style="dim") for fact in finding.evidence),
        Text(f"confidence {finding.confidence:.0%}", style="dim"),
    ]
    return Text("\n").join(lines)
