"""Render a report as text for a terminal, a pipe or a log: verdict, reason, next step, then the tables."""

import io
import os
import sys
from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from analyzers.report import Finding, Report
from analyzers.rooms import imported
from analyzers.run import Run
from analyzers.words import quantity, ranks_beside
from workbench.colours import SEVERITIES, SEVERITY_SIGNS, STATUS_SIGNS, STATUSES
from workbench.console import clean
from workbench.present import below_answer
from workbench.present.table import Table, sections
from workbench.rooms import FACES, data_of, room_named, room_of

_WIDEST = 140
_PIPED = 120
_SCREEN = 23
"""The lines of a small terminal without its prompt."""
FINDINGS = 8


def document(report: Report[object], run: Run, *, full: bool = True) -> str:
    """Return the report as text; it has colours only if stdout is a terminal that supports them.

    On a terminal it is only the answer, as long as a screen, unless `full` is set.
    """
    return laid_out(report, sections(report), more(report, run), full=full)


def laid_out(report: Report[object], tables: Sequence[Table], more: str, *, full: bool = True) -> str:
    """Return a report as text, with its tables; `more` is the last line, unless it is empty."""
    buffer = io.StringIO()
    # A pipe or a file gets no colour codes and always the same width, so that outputs can be compared.
    on_terminal = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    width = min(_WIDEST, os.get_terminal_size().columns) if on_terminal else _PIPED
    console = Console(file=buffer, width=width, force_terminal=on_terminal, highlight=False, legacy_windows=False)
    if on_terminal and not full:
        console.print(_first_screen(report, tables, more, console))
        return _without_padding(buffer)
    console.print(head(report))
    for section in tables:
        console.print(grid(section))
    if on_terminal and (place := FACES[room_named(report.schema)].coloured):
        console.print(imported(place)(report.data))
    # A single finding that leads is already told in full by Why and Next.
    if len(report.findings) > 1 or (report.findings and not report.lead()):
        console.print(findings(report))
    if more:
        console.print(Text(f"\n{more}", style="dim"))
    return _without_padding(buffer)


def _without_padding(buffer: io.StringIO) -> str:
    # Rich pads lines to the full width, which breaks when a narrower terminal shows them.
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def _first_screen(report: Report[object], tables: Sequence[Table], more: str, console: Console) -> Group:
    """Return the answer, what else was found, and what `--full` adds, in at most `_SCREEN` lines if they suffice.

    Facts of the evidence are left out first, then other findings.
    """
    others = [finding for finding in report.findings if finding is not report.lead()]
    # Analyzers of several files may describe the failure that the verdict names.
    also_found = [one for one in others if one.title.partition(" in ")[0] not in report.verdict.sentence]
    hidden = [
        f"{quantity(len(others), 'further finding')}" if others else "",
        f"{quantity(len(tables), 'table')}" if tables else "",
    ]
    rest = f"--full prints {' and '.join(filter(None, hidden))}; " if any(hidden) else ""
    last = Text(f"\n{rest}{more.removeprefix('More: ') if rest else more}", style="dim")
    choices = [(facts, also) for also in (3, 1) for facts in (5, 3, 2, 1, 0)]
    for facts, also in choices:
        parts: list[Group | Text] = [head(report, facts)]
        parts += [
            Text.assemble(("Also     ", "bold"), clean(finding.title) + ranks_beside(finding.title, finding.ranks))
            for finding in also_found[:also]
        ]
        screen = Group(*parts, last)
        if len(console.render_lines(screen)) <= _SCREEN:
            break
    return screen


def _differs_from_verdict(report: Report[object]) -> bool:
    first = report.lead()
    return first is not None and report.verdict.kind not in first.id and first.title not in report.verdict.sentence


_BELOW = "by these lines"
"""What stands in place of a reason where the quoted lines say all that is known."""


def head(report: Report[object], facts: int = 5) -> Group:
    """Return the verdict, its reason, the next step and the missing evidence, laid out in two columns.

    `facts` is how many facts of the evidence are printed.
    """
    verdict, first = report.verdict, report.lead()
    colour = STATUSES[verdict.status]
    name = f"{STATUS_SIGNS[verdict.status]} {verdict.kind.replace('_', ' ')}"
    rows = [("Verdict", Text.assemble((name, f"bold {colour}"), "  ", clean(verdict.sentence)))]
    if first and _differs_from_verdict(report):
        rows += [("Finding", Text(clean(first.title)))]
    if first:
        rows += [
            ("Why" if first.why else "Shown", Text.assemble(clean(first.why or _BELOW), (f"  [{first.id}]", "dim"))),
            ("", evidence(first, facts)),
            ("Next", Text(clean(first.next), style="bold")),
        ]
    elif verdict.next:
        rows += [("Next", Text(clean(verdict.next), style="bold"))]
    rows += [(label, Text(clean(text), style="dim")) for label, text in below_answer(verdict)]
    layout = Grid.grid(padding=(0, 2))
    layout.add_column(style="bold", width=7)
    layout.add_column(overflow="fold")
    for label, text in rows:
        if text:
            layout.add_row(label, text)
    return Group(layout)


def evidence(finding: Finding, facts: int = 5) -> Text:
    shown = [(clean(fact.sentence), clean(fact.line)) for fact in finding.evidence[:facts]]
    return Text("\n".join(f"- {fact}" + (f"  ({line})" if line else "") for fact, line in shown), style="dim")


def grid(section: Table) -> Group:
    """Return a table with its title above, as an object that the library Rich prints."""
    drawn = Grid(box=box.SIMPLE_HEAD, padding=(0, 1), show_edge=False)
    for i, column in enumerate(section.columns):
        drawn.add_column(Text(column), justify="right" if i in section.numeric else "left", overflow="fold")
    for row in section.rows:
        drawn.add_row(*(Text(clean(cell)) for cell in row))
    parts: list[Text | Padding] = [Text(f"\n{clean(section.title)}", style="bold"), Padding(drawn, (0, 0, 0, 1))]
    if section.left_out:
        parts.append(Text(f"  ... and {section.left_out} more (--json prints all)", style="dim"))
    return Group(*parts)


def findings(report: Report[object]) -> Group:
    """Return the first `FINDINGS` findings with reason and next step, and the number of all others."""
    parts: list[Text | Padding] = [Text("\nFindings", style="bold")]
    for finding in report.findings[:FINDINGS]:
        sign = Text(f"  {SEVERITY_SIGNS[finding.severity]} ", style=SEVERITIES[finding.severity])
        title = finding.title + ranks_beside(finding.title, finding.ranks)
        parts.append(sign + Text(clean(title)) + Text(f"  [{finding.id}]", style="dim"))
        if finding is not report.lead():
            body = Text(clean(f"{finding.why}\nNext: {finding.next}".lstrip()), style="dim")
            parts.append(Padding(body, (0, 0, 0, 6)))
    if (hidden := len(report.findings) - FINDINGS) > 0:
        parts.append(Text(f"  ... and {hidden} more (--json prints all)", style="dim"))
    return Group(*parts)


def more(report: Report[object], run: Run) -> str:
    """Return a line of text with the command that shows more about a run, or about the two runs of a bisect report.

    If the run has no files, the result is empty.
    """
    if not run.artefacts:
        return ""
    command = f"inspect {run.root}"
    if room_of(report) == "bisect":
        from analyzers.parity import BisectData  # other reports need not wait for it

        runs = data_of(report, BisectData)
        command = f"bisect {runs.a.folder} {runs.b.folder}" if runs else command
    return f"More: workbench {clean(command)}   (terminal app; --web opens the dashboard, --json prints data)"
