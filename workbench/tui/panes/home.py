"""The home pane: the verdict and its findings, and the ranks and files of the run."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical, VerticalScroll
from textual.message import Message
from textual.widget import Widget
from textual.widgets import DataTable, OptionList, Static
from textual.widgets.option_list import Option

from analyzers.files import json_bytes
from analyzers.report import Finding, Report
from analyzers.run import Run
from analyzers.words import percent, rank_names
from workbench.colours import SEVERITIES, SEVERITY_SIGNS
from workbench.console import clean
from workbench.present.table import filled, sections
from workbench.present.tables.run import file_list, rank_list
from workbench.rooms import EvidenceLink, evidence_link
from workbench.tui.widgets.common import CURSOR_KEYS, VerdictBanner
from workbench.tui.widgets.tables import Grid, titled
from workbench.tui.widgets.view_switcher import VIEW_KEYS, ViewSwitcher

TITLES = {
    "finding": "evidence of the selected finding",
    "ranks": "the ranks, those that findings name first",
    "artefacts": "the files of the run",
}
_TABLES_AT_MOST, _TALL_TABLES = 3, 6
"""The most tables that are shown below a finding, and on a tall screen; the views of the analyzers have the others."""
_TALL = 45
"""The height of the screen, in lines, from which on there are more tables."""


class EvidenceWanted(Message):
    """Message: the user wants to see the evidence of a finding."""

    def __init__(self, link: EvidenceLink) -> None:
        super().__init__()
        self.link = link


class Findings(OptionList):
    DEFAULT_CSS = "Findings { text-wrap: nowrap; text-overflow: ellipsis; }"

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "select", "Evidence", id="findings.evidence"),
        *CURSOR_KEYS[:2],
    ]


class HomePane(Vertical):
    """The verdict and the list of findings; below them the selected finding in full, the ranks, or the files.

    Enter opens the view with the evidence of the selected finding. `pictures` are charts of the evidence, below the
    list of findings; most screens have space for the first chart only. On a broad screen, the list and the charts are
    at the left, and everything else is at the right.
    """

    BINDINGS: ClassVar[list[BindingType]] = VIEW_KEYS

    def __init__(self, report: Report[object], runs: tuple[Run, ...], pictures: Sequence[Widget] = ()) -> None:
        super().__init__()
        self._report, self._runs, self._pictures = report, runs, pictures

    def compose(self) -> ComposeResult:
        yield VerdictBanner(self._report)
        with Container(id="home-body", classes="" if self._report.findings else "calm"):
            with Vertical(id="home-list"):
                if self._report.findings:
                    lines = (Option(self._line(finding), id=str(i)) for i, finding in enumerate(self._report.findings))
                    yield Findings(*lines, id="findings")
                yield from self._pictures
            yield HomeViews(self._report, self._runs)

    def _line(self, finding: Finding) -> Text:
        return finding_line(finding, self._report.verdict.sentence)

    def text_at_cursor(self) -> str:
        selected = next((findings.highlighted for findings in self.query(OptionList)), None)
        return "" if selected is None else json_bytes(self._report.findings[selected]).decode()

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show the highlighted finding in full, and draw its line in the list without colours.

        Colours of its own could not be read on the background of the highlighted line.
        """
        findings = event.option_list
        for number, finding in enumerate(self._report.findings):
            line, is_selected = self._line(finding), number == event.option_index
            findings.replace_option_prompt_at_index(number, Text(line.plain) if is_selected else line)
        self.query_one(HomeViews).show_finding(self._report.findings[event.option_index])

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._show_evidence(self._report.findings[event.option_index])

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Show the evidence of the first finding that names the rank selected in the table of ranks."""
        if event.data_table.id == "ranks":
            event.stop()
            rank = int(str(event.data_table.get_row(event.row_key)[0]))
            self._show_evidence(next((f for f in self._report.findings if rank in f.ranks), None), rank)

    def _show_evidence(self, finding: Finding | None, rank: int | None = None) -> None:
        """Post a message that asks the app to show the evidence of a finding; `rank` replaces the finding's rank."""
        link = evidence_link(finding) if finding else None
        if link is None:
            self.notify("no view shows more of this", markup=False)
        else:
            self.post_message(EvidenceWanted(link if rank is None else replace(link, rank=rank)))

    async def action_turn(self, by: int) -> None:
        await self.query_one(HomeViews).action_turn(by)

    def on_home_views_turned(self, event: "HomeViews.Turned") -> None:
        """Focus the table of ranks or files if the user has switched to it; otherwise focus the list of findings.

        On a low screen, the table replaces the list, the chart, and the end of a long verdict.
        """
        on_table = event.view != "finding"
        self.query_one("#home-list").set_class(on_table, "replaced")
        self.set_class(on_table, "tables")
        self.screen.set_focus(self.query_one(HomeViews).shown if on_table else next(iter(self.query(Findings)), None))


class HomeViews(ViewSwitcher):
    TAKES_KEYS: ClassVar[bool] = False

    class Turned(Message):
        """Message: the user has switched to the view named `view`."""

        def __init__(self, view: str) -> None:
            super().__init__()
            self.view = view

    def __init__(self, report: Report[object], runs: tuple[Run, ...]) -> None:
        super().__init__(TITLES)
        self._report, self._runs = report, runs
        if not report.findings:
            self.view = "ranks"
        self._text = Static(Text("no findings", style="dim"), id="finding-text")

    def widgets(self) -> Iterable[Widget]:
        tables = filled(sections(self._report))[: _TALL_TABLES if self.app.size.height >= _TALL else _TABLES_AT_MOST]
        yield VerticalScroll(self._text, *titled(tables), id="finding")
        yield Grid(rank_list(self._report), id="ranks")
        yield Grid(file_list(self._runs), id="artefacts")

    def ask(self, view: str) -> None:
        """Return None: all views are drawn from the report, without further computation."""

    async def turn_to(self, view: str) -> None:
        await super().turn_to(view)
        self.post_message(self.Turned(view))

    def show_finding(self, finding: Finding) -> None:
        """Show a finding in full.

        Of the finding behind the verdict, show only the evidence: the banner at the top already shows everything else.
        """
        self._text.update(evidence(finding) if finding is self._report.lead() else whole_finding(finding))


def finding_line(finding: Finding, verdict: str = "") -> Text:
    """Return a finding as one line of text; a narrow screen cuts off the end of the line.

    If the sentence `verdict` begins with the finding's title, the line says "the verdict above" instead of the title.
    """
    ranks = rank_names(finding.ranks) if finding.ranks else ""
    sign = (f"{SEVERITY_SIGNS[finding.severity]} ", SEVERITIES[finding.severity])
    # Most titles name the ranks themselves.
    prefix = "" if re.search(rf"\b{ranks}\b", finding.title, re.IGNORECASE) else f"{ranks}: "
    if verdict.startswith(finding.title):
        return Text.assemble(sign, "the verdict above", (f"  {finding.id}", "dim"))
    return Text.assemble(sign, prefix, clean(finding.title), (f"  {finding.id}", "dim"))


def whole_finding(finding: Finding) -> Text:
    lines = [
        Text(clean(finding.title), style="bold"),
        *([Text(clean(finding.why))] if finding.why else []),
        Text.assemble(("Next  ", "dim"), (clean(finding.next), "bold")),
        evidence(finding),
    ]
    return Text("\n").join(lines)


def evidence(finding: Finding) -> Text:
    facts = [Text(f"- {clean(fact.sentence)}  {clean(fact.line)}", style="dim") for fact in finding.evidence]
    return Text("\n").join([*facts, Text(f"confidence {percent(finding.confidence)}", style="dim")])
