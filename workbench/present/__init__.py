"""Report -> text, JSON, Markdown, standalone HTML."""

from typing import Any

from analyzers.report import Report
from analyzers.run import Run
from workbench.options import Format


def render(report: Report[Any], wanted: Format, run: Run) -> str:
    """The whole document, ending in a newline."""
    if wanted is Format.JSON:
        return report.json().decode() + "\n"
    if wanted is Format.MARKDOWN:
        from workbench.present.markdown import document
    elif wanted is Format.HTML:
        from workbench.present.html import document
    else:
        from workbench.present.text import document
    return document(report, run)
