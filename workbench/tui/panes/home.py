"""The answer, the findings behind it, and the run that it is about."""

import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.message import Message
from textual.widget import Widget
from textual.widgets import DataTable, OptionList, Static
from textual.widgets.option_list import Option

from analyzers.report import Finding, Report
from analyzers.run import Run
from analyzers.words import rank_names
from workbench.colours import SEVERITIES, SEVERITY_SIGNS
from workbench.console import clean
from workbench.evidence_link import EvidenceLink, evidence_link
from workbench.present.sections import sections
from workbench.present.tables.run import file_list, rank_list
from workbench.tui.widgets.key_bindings import CURSOR
from workbench.tui.widgets.tables import Grid, titled
from workbench.tui.widgets.verdict_banner import VerdictBanner
from workbench.tui.widgets.view_switcher import TURNS, Readings

TITLES = {
    "finding": "the finding",
    "ranks": "the ranks, those that findings name first",
    "artefacts": "what the run has left",
}


TABLES_AT_MOST = 3
"""Below a finding; the views have the others."""
TALL = 36
"""Lines from which on the screen has room for the findings and a table below them."""


class Looked(Message):
    """The evidence is to be shown."""

    def __init__(self, at: EvidenceLink) -> None:
        super().__init__()
        self.at = at


class Findings(OptionList):
    """A line each; enter shows the evidence."""

    DEFAULT_CSS = "Findings { text-wrap: nowrap; text-overflow: ellipsis; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Evidence", id="findings.evidence"),
        *CURSOR[:2],
    ]


class HomePane(Vertical):
    """Verdict banner above the list of findings; below it the highlighted one in full, or the ranks, or the files.

    Enter shows the evidence of a finding, in the view that has it.
    """

    BINDINGS: ClassVar[list[BindingType]] = TURNS

    def __init__(self, report: Report[Any], runs: tuple[Run, ...]) -> None:
        super().__init__()
        self._report, self._runs = report, runs

    def compose(self) -> ComposeResult:
        yield VerdictBanner(self._report)
        if self._report.findings:
            yield Findings(*(Option(title(f), id=str(i)) for i, f in enumerate(self._report.findings)), id="findings")
        yield About(self._report, self._runs)

    def chosen(self) -> str:
        """The highlighted finding as JSON."""
        finding = self._highlighted()
        return msgspec.json.encode(finding).decode() if finding else ""

    def _highlighted(self) -> Finding | None:
        at = next((findings.highlighted for findings in self.query(OptionList)), None)
        return None if at is None else self._report.findings[at]

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        self.query_one(About).tell(self._report.findings[event.option_index])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._look(self._report.findings[event.option_index])

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Of a rank show the evidence of what names it."""
        if event.data_table.id == "ranks":
            event.stop()
            rank = int(str(event.data_table.get_row(event.row_key)[0]))
            self._look(next((f for f in self._report.findings if rank in f.ranks), None), rank)

    def _look(self, finding: Finding | None, rank: int | None = None) -> None:
        """Ask for the view that shows why the finding is one."""
        at = evidence_link(finding) if finding else None
        if at is None:
            self.notify("there is nothing more to see of this", markup=False)
        else:
            self.post_message(Looked(at if rank is None else replace(at, rank=rank)))

    async def action_reading(self, by: int) -> None:
        await self.query_one(About).action_reading(by)

    def on_about_turned(self, event: "About.Turned") -> None:
        """A table takes the keys, and the room of the findings where there is little."""
        on_table = event.reading != "finding"
        self.query(Findings).set_class(on_table and self.app.size.height < TALL, "hidden")
        self.screen.set_focus(self.query_one(About).shown if on_table else next(iter(self.query(Findings)), None))


class About(Readings):
    """What is below the findings."""

    TAKES_KEYS: ClassVar[bool] = False

    class Turned(Message):
        """Another reading is in sight."""

        def __init__(self, reading: str) -> None:
            super().__init__()
            self.reading = reading

    def __init__(self, report: Report[Any], runs: tuple[Run, ...]) -> None:
        super().__init__(TITLES)
        self._report, self._runs = report, runs
        self._text = Static(Text("nothing out of line was found", style="dim"), id="finding-text")

    def widgets(self) -> Iterable[Widget]:
        """A widget for each of `TITLES`."""
        yield VerticalScroll(self._text, *titled(sections(self._report)[:TABLES_AT_MOST]), id="finding")
        yield Grid(rank_list(self._report), id="ranks")
        yield Grid(file_list(self._runs), id="artefacts")

    def ask(self, reading: str) -> None:
        """All of it is in the report."""

    async def turn_to(self, reading: str) -> None:
        """Show a reading, and say so to the pane."""
        await super().turn_to(reading)
        self.post_message(self.Turned(reading))

    def tell(self, finding: Finding) -> None:
        """Tell a finding; the banner has said most of what there is to the one that the verdict rests on."""
        self._text.update(evidence(finding) if finding is self._report.lead() else told(finding))


def title(finding: Finding) -> Text:
    """One line, of which a narrow screen loses the end."""
    ranks = rank_names(finding.ranks) if finding.ranks else ""
    sign = (f"{SEVERITY_SIGNS[finding.severity]} ", SEVERITIES[finding.severity])
    also = "" if re.search(rf"\b{ranks}\b", finding.title) else f"{ranks}: "
    return Text.assemble(sign, also, clean(finding.title), (f"  {finding.id}", "dim"))


def told(finding: Finding) -> Text:
    """A finding with why, next and its evidence."""
    lines = [
        Text(clean(finding.title), style="bold"),
        Text(clean(finding.why)),
        Text.assemble(("Next  ", "dim"), (clean(finding.next), "bold")),
        evidence(finding),
    ]
    return Text("\n").join(lines)


def evidence(finding: Finding) -> Text:
    """The facts behind a finding, and how sure it is."""
    facts = [Text(f"- {clean(fact.text)}  {clean(fact.line)}", style="dim") for fact in finding.evidence]
    return Text("\n").join([*facts, Text(f"confidence {finding.confidence:.0%}", style="dim")])
