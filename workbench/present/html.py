"""Render a report as a single HTML file without scripts or external files, so that it can be mailed or archived."""

import re
from collections.abc import Iterator
from contextlib import suppress

from analyzers.errors import WorkbenchError
from analyzers.report import Finding, Report
from analyzers.rooms import imported
from analyzers.run import Run
from analyzers.words import ranks_beside
from workbench.colours import LIGHT, SEVERITY_SIGNS, STATUS_SIGNS, css_severity, css_themes
from workbench.console import clean
from workbench.present import below_answer
from workbench.present.collective_matrix import STYLE as MATRIX_STYLE
from workbench.present.figure import prose, text
from workbench.present.table import Table, sections
from workbench.rooms import FACES, data_by_room

# Printed colours are forced on: a browser leaves out backgrounds, and with them the meaning of the charts.
STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--page); font-variant-numeric: tabular-nums; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict, .finding { border: 1px solid var(--edge); border-left: 4px solid var(--status); border-radius: 4px;
  background: var(--panel); padding: .2rem 1rem; margin: 1rem 0; }
table { border-collapse: collapse; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--edge); text-align: left; vertical-align: top; }
th, .keys, code, .label { color: var(--soft); }
figure { margin: 2rem 0; } figcaption { font-weight: 600; margin-bottom: .6rem; }
svg { width: 100%; height: 220px; border-bottom: 1px solid var(--rule); }
line, polyline { vector-effect: non-scaling-stroke; }
.plot { display: grid; grid-template-columns: 5.5rem minmax(0, 1fr); color: var(--soft); font-size: 12px; }
.up, .across { position: relative; } .up { margin-bottom: 7px; }
.up span { position: absolute; right: .5rem; transform: translateY(50%); white-space: nowrap; }
.across { grid-column: 2; height: 1.5rem; } .across .failed { color: var(--error); font-weight: 600; }
.across span { position: absolute; transform: translateX(-50%); white-space: nowrap; }
.across span.last { transform: translateX(-100%); }
.wide { overflow-x: auto; }
.keys { display: flex; flex-wrap: wrap; gap: 0 1.2rem; }
.keys i { display: inline-block; width: .8rem; height: .8rem; margin-right: .4rem; }
.n { text-align: right; white-space: nowrap; } code, li { overflow-wrap: anywhere; }
@media print {
  body { max-width: none; margin: 0; }
  .verdict, .finding, figure, tr { break-inside: avoid; } h2, figcaption { break-after: avoid; }
  * { print-color-adjust: exact; }
}
"""
# Paper is light, whatever the theme of the screen.
_PRINTED = f"@media print {{ :root:not([data-theme='light']) {{ {LIGHT.css()} }} }}"

# The policy forbids scripts and the network even if a text of an artefact should slip past the escaping.
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}: {root}</title><style>{style}</style></head>
<body><h1>{title}</h1>
{body}
<p><small>Made by workbench {version} from <code>{root}</code>.</small></p></body></html>
"""


def document(report: Report[object], run: Run) -> str:
    """Return the report as one HTML page: verdict, findings, charts, tables."""
    verdict = report.verdict
    body = [
        f'<div class="verdict" style="--status:{css_severity(verdict.status)}">',
        f"<p><strong>{prose(verdict.sentence)}</strong></p>",
        *([f"<p>Next: {prose(verdict.next)}</p>"] if verdict.next and not report.lead() else []),
        *(f"<p>{label}: {prose(text)}</p>" for label, text in below_answer(verdict)),
        "</div>",
        *(["<h2>Findings</h2>"] if report.findings else []),
        *(card(finding) for finding in report.findings),
        *charts(report, run),
        *(grid(section) for section in sections(report)),
    ]
    return PAGE.format(
        title=f"{STATUS_SIGNS[verdict.status]} {text(verdict.kind.replace('_', ' '))}",
        root=text(run.root),
        style=f"{css_themes()}{STYLE}{MATRIX_STYLE}{_PRINTED}",
        version=text(report.version),
        body="\n".join(body),
    )


def charts(report: Report[object], run: Run) -> Iterator[str]:
    """Yield the HTML figures of a report, if the files of the run still exist.

    Those of a hang come first if the verdict is about it.
    """
    lead = report.lead()
    hangs = lead is not None and lead.id.startswith("hang.")
    for room, data in sorted(data_by_room(report).items(), key=lambda item: not (hangs and item[0] == "hang")):
        with suppress(WorkbenchError):  # the tables stand without it
            yield from imported(place)(data, report, run) if (place := FACES[room].charts) else ()


def card(finding: Finding) -> str:
    title = f"{SEVERITY_SIGNS[finding.severity]} {prose(finding.title)}"
    about = ranks_beside(finding.title, finding.ranks)
    why = f"<p>{prose(finding.why)}</p>" if finding.why else ""
    facts = "".join(f"<li>{prose(fact.sentence)} <code>{text(fact.line)}</code></li>" for fact in finding.evidence)
    return (
        f'<div class="finding" id="{text(finding.id)}" style="--status:{css_severity(finding.severity)}">'
        f"<strong>{title}</strong>{about} <code>{text(finding.id)}</code>"
        f'{why}<p><span class="label">Next</span> {prose(finding.next)}</p>'
        f"<ul>{facts}</ul></div>"
    )


def grid(section: Table) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        styled = (tag + (' class="n"' if i in section.numeric else "") for i in range(len(cells)))
        return "<tr>" + "".join(f"<{s}>{text(c)}</{tag}>" for s, c in zip(styled, cells, strict=True)) + "</tr>"

    rows = "".join(row(cells, "td") for cells in section.rows)
    rest = f"<p>... and {section.left_out} more</p>" if section.left_out else ""
    return (
        f'<h2>{text(section.title)}</h2><div class="wide"><table>{row(section.columns, "th")}{rows}</table></div>{rest}'
    )


def markdown_document(report: Report[object], run: Run) -> str:
    """Return the report as Markdown text: verdict, findings, tables."""
    verdict = report.verdict
    lines = [
        f"# {STATUS_SIGNS[verdict.status]} {escape(verdict.kind.replace('_', ' '))}",
        "",
        f"**{escape(verdict.sentence)}**",
        "",
        *([f"- Next: {escape(verdict.next)}"] if verdict.next and not report.lead() else []),
        *(f"- {label}: {escape(text)}" for label, text in below_answer(verdict)),
        "",
        *findings(report),
    ]
    for section in sections(report):
        lines += ["", f"## {escape(section.title)}", "", *_markdown_grid(section)]
    lines += ["", f"Made by workbench {report.version} from {code(run.root)}."]
    # Parts that are empty leave blank lines behind.
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def findings(report: Report[object]) -> list[str]:
    """Return the lines of a Markdown list of all findings."""
    lines = ["## Findings", ""] if report.findings else []
    for finding in report.findings:
        ranks = ranks_beside(finding.title, finding.ranks)
        lines.append(f"- **{finding.severity}: {escape(finding.title)}**{ranks} {code(finding.id)}")
        lines += [*([f"  {escape(finding.why)}"] if finding.why else []), f"  Next: {escape(finding.next)}"]
        lines += [f"  - {escape(fact.sentence)} {escape(fact.line)}".rstrip() for fact in finding.evidence]
    return lines


def _markdown_grid(section: Table) -> list[str]:
    rule = ["---:" if i in section.numeric else "---" for i in range(len(section.columns))]
    rows = [section.columns, rule, *section.rows]
    lines = ["| " + " | ".join(cell if row is rule else escape(cell) for cell in row) + " |" for row in rows]
    return [*lines, f"... and {section.left_out} more"] if section.left_out else lines


_LINKS = re.compile(r"(?<=@)(?=\w)|(?<=:)(?=//)|(?i:(?<=www)(?=\.))")
"""Matches the places within a text where sites make a link of it by themselves: `@name`, `https://`, `www.`."""


def escape(text: object) -> str:
    """Return `text` as a single line with Markdown and HTML escaped; it may come from a hostile file.

    Where the report is published, the text neither links to anything nor notifies anybody by `@name`: an empty HTML
    comment separates what would do so.
    """
    # A line break would end a table row or start a heading.
    flat = clean(text).replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;")
    return _LINKS.sub("<!-- -->", re.sub(r"([\\`*_\[\]|#!])", r"\\\1", flat))


def code(text: object) -> str:
    """Return `text` as a code span of one line; in a code span nothing is a link, and nothing can be escaped."""
    flat = clean(text).replace("\n", " ")
    fence = "`" * (max((len(run) for run in re.findall("`+", flat)), default=0) + 1)
    return f"{fence} {flat} {fence}" if "`" in flat else f"`{flat}`"
