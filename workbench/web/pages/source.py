"""The source around a line that the report names; `?at=FILE:LINE` says which."""

from pathlib import Path
from typing import Any

from dash import html

from workbench.console import clean
from workbench.source import source_of
from workbench.web.view import View

AROUND = 25


def layout(view: View, query: dict[str, str]) -> html.Div:
    """Only lines that the report itself names are shown: the address is no way to any other file."""
    at = query.get("at", "")
    place = source_of(at) if at and at.encode() in view.report.json() else None
    if place is None:
        return html.Div(f"The source of {clean(at) or 'nothing'} is not on this machine, or not part of this report.")
    path, line = place
    return html.Div([html.H2(f"{clean(path)}:{line}"), excerpt(path, line)])


def excerpt(path: Path, line: int) -> html.Ol:
    lines = path.read_text(errors="replace").splitlines()
    first = max(1, line - AROUND)
    here: dict[str, Any] = {"aria-current": "true", "className": "here"}
    rows = [
        html.Li(clean(text) or " ", **(here if number == line else {}))
        for number, text in enumerate(lines[first - 1 : line + AROUND], first)
    ]
    return html.Ol(rows, start=str(first), className="source")
