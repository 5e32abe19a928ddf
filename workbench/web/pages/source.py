"""The page that shows a source file around one line; `?at=FILE:LINE` selects file and line."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dash import html

from analyzers.hangs import HangData
from analyzers.hangs import views as hangs
from analyzers.memory import views as memory
from analyzers.run import Kind
from analyzers.traces import views as traces
from workbench.console import clean
from workbench.source_files import SOURCE_LINE, find_source
from workbench.web.components.links import breakable
from workbench.web.page import Page
from workbench.web.query import Query
from workbench.web.served_run import ServedRun

AROUND = 25
"""The number of lines that are shown before, and that are shown after, the selected line."""


def layout(served: ServedRun, query: Query) -> html.Div:
    """Return the page with a source file.

    Only files that an artefact of the run mentions are shown; so nobody can read other files by typing an address.
    """
    at = query.get("at", "")
    if not served.trusted:
        return html.Div("Dropped files show no source. Open them by path: workbench serve PATH")
    place = find_source(at) if is_named(served, at) else None
    if place is None:
        return html.Div(f"{clean(at) or 'This file'} is not on this machine, or this run does not mention it.")
    path, line = place
    return html.Div([html.H2(breakable(f"{clean(path)}:{line}")), excerpt(path, line)])


def is_named(served: ServedRun, at: str) -> bool:
    """Return whether the report or an artefact of the run mentions the source file in `at`, such as `train.py:22`."""
    match = SOURCE_LINE.fullmatch(at)
    if match is None:
        return False
    path = match[1]
    # The report is in memory; the artefacts are opened only where it does not mention the file.
    return at.encode(errors="replace") in served.report.json() or any(
        file == path or file.replace("\\", "/").endswith(f"/{path}") for file in _mentioned_files(served)
    )


def _mentioned_files(served: ServedRun) -> Iterator[str]:
    """Yield the source files that snapshots, traces and Flight Recorder dumps of the run mention.

    This is a generator because reading is slow: the next artefact is read only when the caller asks for more.
    """
    for snapshot in served.run.of(Kind.SNAPSHOT) if "memory" in served.rooms else ():
        yield from memory.source_files(snapshot, served.options)
    for trace in served.run.of(Kind.TRACE) if "trace" in served.rooms else ():
        yield from _in_texts(traces.names(trace, served.options))
    if hang := served.data(HangData):
        yield from _in_texts(hangs.stacks(served.run, served.options)["place"])
        for group in hang.groups:
            issued = hangs.operations(served.run, group.name, options=served.options).to_numpy().ravel()
            yield from _in_texts(cell.line for cell in issued)


def _in_texts(texts: Iterable[object]) -> Iterator[str]:
    return (match[1] for text in texts for match in SOURCE_LINE.finditer(str(text)))


def excerpt(path: Path, line: int) -> html.Ol:
    """Return the lines around line `line` of a file, numbered as in the file."""
    lines = path.read_text(errors="replace").splitlines()
    # Lines count from 1.
    first = max(1, line - AROUND)
    marked: dict[str, Any] = {"aria-current": "true", "className": "here"}
    rows = [
        html.Li(clean(text) or " ", **(marked if number == line else {}))
        for number, text in enumerate(lines[first - 1 : line + AROUND], first)
    ]
    return html.Ol(rows, start=str(first), className="source")


PAGE = Page("Source", layout)
