"""A report for a terminal, a pipe or a log: verdict first, then why, what to do next, and the numbers."""

import io
import os
import sys
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from analyzers.report import Finding, Report
from analyzers.run import Run
from analyzers.words import rank_ranges
from workbench.colours import SEVERITIES, SEVERITY_SIGNS, STATUS_SIGNS, STATUSES
from workbench.console import clean
from workbench.present.sections import sections
from workbench.present.table import Table

WIDEST = 140
PIPED = 120
FINDINGS = 8


def document(report: Report[Any], run: Run) -> str:
    """The text; with colour only where stdout is a terminal that wants it."""
    buffer = io.StringIO()
    on_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    width = min(WIDEST, os.get_terminal_size().columns) if on_terminal else PIPED
    console = Console(file=buffer, width=width, force_terminal=on_terminal, highlight=False, legacy_windows=False)
    console.print(head(report))
    for section in sections(report):
        console.print(grid(section))
    if len(report.findings) > 1 or (report.findings and not report.lead()):
        console.print(findings(report))
    if run.artefacts:
        console.print(Text(f"\n{more(run)}", style="dim"))
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def head(report: Report[Any]) -> Group:
    """Verdict, Why, Next, Missing."""
    verdict, first = report.verdict, report.lead()
    colour = STATUSES[verdict.status]
    name = f"{STATUS_SIGNS[verdict.status]} {verdict.kind.replace('_', ' ')}"
    rows = [("Verdict", Text.assemble((name, f"bold {colour}"), "  ", clean(verdict.sentence)))]
    if first:
        rows += [
            ("Why", Text.assemble(clean(first.why), (f"  [{first.id}]", "dim"))),
            ("", evidence(first)),
            ("Next", Text(clean(first.next), style="bold")),
        ]
    rows += [("Missing", Text(clean(gap), style="dim")) for gap in verdict.missing]
    layout = Grid.grid(padding=(0, 2))
    layout.add_column(style="bold", width=7)
    layout.add_column(overflow="fold")
    for label, text in rows:
        if text:
            layout.add_row(label, text)
    return Group(layout)


def evidence(finding: Finding) -> Text:
    lines = [clean(fact.text) + (f"  ({clean(fact.line)})" if fact.line else "") for fact in finding.evidence[:5]]
    return Text("\n".join(f"- {line}" for line in lines), style="dim")


def grid(section: Table) -> Group:
    """A table under its title."""
    drawn = Grid(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for i, column in enumerate(section.columns):
        drawn.add_column(Text(column), justify="right" if i in section.numeric else "left", overflow="fold")
    for row in section.rows:
        drawn.add_row(*(Text(clean(cell)) for cell in row))
    parts: list[Text | Padding] = [Text(f"\n{clean(section.title)}", style="bold"), Padding(drawn, (0, 0, 0, 1))]
    if section.left_out:
        parts.append(Text(f"  ... and {section.left_out} more: --json has them all", style="dim"))
    return Group(*parts)


def findings(report: Report[Any]) -> Group:
    """All findings, the first ones in full."""
    parts: list[Text | Padding] = [Text("\nFindings", style="bold")]
    for finding in report.findings[:FINDINGS]:
        sign = Text(f"  {SEVERITY_SIGNS[finding.severity]} ", style=SEVERITIES[finding.severity])
        parts.append(sign + Text(clean(f"{finding.title}{about(finding)}")) + Text(f"  [{finding.id}]", style="dim"))
        if finding is not report.lead():
            told = Text(clean(f"{finding.why}\nNext: {finding.next}"), style="dim")
            parts.append(Padding(told, (0, 0, 0, 6)))
    if (hidden := len(report.findings) - FINDINGS) > 0:
        parts.append(Text(f"  ... and {hidden} more: --json has them all", style="dim"))
    return Group(*parts)


def about(finding: Finding) -> str:
    return f" (rank {rank_ranges(finding.ranks)})" if finding.ranks else ""


def more(run: Run) -> str:
    """The command that shows more."""
    return f"more: workbench inspect {clean(run.root)}    (a terminal app; --web, --json, --format markdown)"
