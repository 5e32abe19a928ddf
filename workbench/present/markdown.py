"""Render a report as Markdown, for a ticket or a pull request."""

import re

from analyzers.report import Report
from analyzers.run import Run
from analyzers.words import ranks_beside
from workbench.colours import STATUS_SIGNS
from workbench.console import clean
from workbench.present.table import Table, sections


def document(report: Report[object], run: Run) -> str:
    """Return the report as Markdown text: verdict, findings, tables."""
    verdict = report.verdict
    lines = [
        f"# {STATUS_SIGNS[verdict.status]} {escape(verdict.kind.replace('_', ' '))}",
        "",
        f"**{escape(verdict.sentence)}**",
        "",
        *(f"- Missing evidence: {escape(gap)}" for gap in verdict.missing),
        "",
        *findings(report),
    ]
    for section in sections(report):
        lines += ["", f"## {escape(section.title)}", "", *grid(section)]
    lines += ["", f"Made by workbench {report.version} from {code(run.root)}."]
    # Parts that are empty leave blank lines behind.
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def findings(report: Report[object]) -> list[str]:
    """Return the lines of a Markdown list of all findings."""
    lines = ["## Findings", ""] if report.findings else []
    for finding in report.findings:
        ranks = ranks_beside(finding.title, finding.ranks)
        lines.append(f"- **{finding.severity}: {escape(finding.title)}**{ranks} {code(finding.id)}")
        lines += [f"  {escape(finding.why)}", f"  Next: {escape(finding.next)}"]
        lines += [f"  - {escape(fact.text)} {escape(fact.line)}".rstrip() for fact in finding.evidence]
    return lines


def grid(section: Table) -> list[str]:
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
