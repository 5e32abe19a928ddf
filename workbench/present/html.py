"""A report as one HTML file that needs no network and no script."""

from html import escape
from typing import Any

from analyzers.report import Report
from analyzers.run import Run
from workbench.console import clean
from workbench.palette import SEVERITIES, SEVERITY_SIGNS, STATUS_SIGNS, STATUSES
from workbench.present.sections import Table, sections
from workbench.present.units import ranges

STYLE = """
:root { color-scheme: light dark; --edge: #8884; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { border-left: .4rem solid var(--status); padding: .2rem 1rem; }
.finding { border-left: .25rem solid var(--status); padding-left: .8rem; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .2rem .7rem; border-bottom: 1px solid var(--edge); text-align: left; }
.n { text-align: right; } code, li { overflow-wrap: anywhere; }
"""


def document(report: Report[Any], run: Run) -> str:
    verdict = report.verdict
    title = f"{STATUS_SIGNS[verdict.status]} {verdict.kind.replace('_', ' ')}"
    parts = [
        "<!doctype html><html lang=en><head><meta charset=utf-8>",
        "<meta http-equiv=Content-Security-Policy content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{text(title)}: {text(run.root)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{text(title)}</h1>",
        f'<div class=verdict style="--status:{STATUSES[verdict.status]}"><p><strong>{text(verdict.sentence)}</strong></p>',
        *(f"<p>missing: {text(gap)}</p>" for gap in verdict.missing),
        "</div>",
        *findings(report),
        *(part for section in sections(report) for part in grid(section)),
        f"<p><small>Made by workbench {text(report.version)} from <code>{text(run.root)}</code>.</small></p></body></html>",
    ]
    return "\n".join(parts) + "\n"


def findings(report: Report[Any]) -> list[str]:
    parts = ["<h2>Findings</h2>"] if report.findings else []
    for finding in report.findings:
        ranks = f" (rank {ranges(finding.ranks)})" if finding.ranks else ""
        parts.append(
            f'<div class=finding id="{text(finding.id)}" style="--status:{SEVERITIES[finding.severity]}">'
            f"<strong>{SEVERITY_SIGNS[finding.severity]} {text(finding.title)}</strong>{ranks} <code>{text(finding.id)}</code>"
            f"<p>{text(finding.why)}</p><p>Next: <strong>{text(finding.next)}</strong></p><ul>"
        )
        parts += [f"<li>{text(fact.text)} <code>{text(fact.line)}</code></li>" for fact in finding.evidence]
        parts.append("</ul></div>")
    return parts


def grid(section: Table) -> list[str]:
    def row(cells: tuple[str, ...], tag: str) -> str:
        drawn = (f"<{tag}{' class=n' if i in section.numeric else ''}>{text(cell)}</{tag}>" for i, cell in enumerate(cells))
        return f"<tr>{''.join(drawn)}</tr>"

    rest = [f"<p>... and {section.left_out} more</p>"] if section.left_out else []
    rows = [row(cells, "td") for cells in section.rows]
    return [f"<h2>{text(section.title)}</h2><table>", row(section.columns, "th"), *rows, "</table>", *rest]


def text(value: object) -> str:
    return escape(clean(value))
