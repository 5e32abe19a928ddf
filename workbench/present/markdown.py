"""A report for a ticket or a pull request."""

import re
from typing import Any

from analyzers.report import Report
from analyzers.run import Run
from analyzers.words import rank_ranges
from workbench.colours import STATUS_SIGNS
from workbench.console import clean
from workbench.present.sections import sections
from workbench.present.table import Table


def document(report: Report[Any], run: Run) -> str:
    verdict = report.verdict
    lines = [
        f"# {STATUS_SIGNS[verdict.status]} {escape(verdict.kind.replace('_', ' '))}",
        "",
        f"**{escape(verdict.sentence)}**",
        "",
        *(f"- missing: {escape(gap)}" for gap in verdict.missing),
        "",
        *findings(report),
    ]
    for section in sections(report):
        lines += ["", f"## {escape(section.title)}", "", *grid(section)]
    lines += ["", f"Made by workbench {report.version} from `{escape(run.root)}`."]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n"


def findings(report: Report[Any]) -> list[str]:
    lines = ["## Findings", ""] if report.findings else []
    for finding in report.findings:
        ranks = f" (rank {rank_ranges(finding.ranks)})" if finding.ranks else ""
        lines.append(f"- **{finding.severity}: {escape(finding.title)}**{ranks} `{escape(finding.id)}`")
        lines += [f"  {escape(finding.why)}", f"  Next: {escape(finding.next)}"]
        lines += [f"  - {escape(fact.text)} {escape(fact.line)}".rstrip() for fact in finding.evidence]
    return lines


def grid(section: Table) -> list[str]:
    rule = ["---:" if i in section.numeric else "---" for i in range(len(section.columns))]
    rows = [section.columns, rule, *section.rows]
    lines = ["| " + " | ".join(cell if row is rule else escape(cell) for cell in row) + " |" for row in rows]
    return [*lines, f"... and {section.left_out} more"] if section.left_out else lines


def escape(text: object) -> str:
    """Text of an artefact as text: no markup, no links, no HTML, one line."""
    flat = clean(text).replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*_\[\]|#!])", r"\\\1", flat)
