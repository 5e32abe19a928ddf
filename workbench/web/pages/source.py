"""The source around a line that the run names; `?at=FILE:LINE` says which."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dash import html

from analyzers.hangs import views as hangs
from analyzers.memory import views as memory
from analyzers.run import Kind
from analyzers.traces import views as traces
from workbench.console import clean
from workbench.source_files import SOURCE_LINE, find_source
from workbench.web.served_run import ServedRun

AROUND = 25


def layout(served: ServedRun, query: dict[str, str]) -> html.Div:
    """Only files that the run itself names are shown: the address is no way to any other."""
    at = query.get("at", "")
    place = find_source(at) if served.trusted and named(served, at) else None
    if place is None:
        return html.Div(f"The source of {clean(at) or 'nothing'} is not on this machine, or not part of this run.")
    path, line = place
    return html.Div([html.H2(f"{clean(path)}:{line}"), excerpt(path, line)])


def named(served: ServedRun, at: str) -> bool:
    """Whether the report, or an artefact of the run, speaks of this file."""
    found = SOURCE_LINE.fullmatch(at)
    if found is None:
        return False
    path = found[1]
    return at.encode() in served.report.json() or any(
        one == path or one.replace("\\", "/").endswith(f"/{path}") for one in files(served)
    )


def files(served: ServedRun) -> Iterator[str]:
    """The source files that stacks, events and dumps of the run name; files are looked into as far as it takes."""
    for snapshot in served.run.of(Kind.SNAPSHOT) if "memory" in served.parts else ():
        yield from memory.source_files(snapshot, served.options)
    for trace in served.run.of(Kind.TRACE) if "trace" in served.parts else ():
        yield from in_texts(traces.names(trace, served.options))
    if "hang" in served.parts:
        yield from in_texts(hangs.stacks(served.run, served.options)["place"])
        for group in served.parts["hang"].groups:
            issued = hangs.operations(served.run, group.name, options=served.options).to_numpy().ravel()
            yield from in_texts(cell.place for cell in issued)


def in_texts(texts: Any) -> Iterator[str]:
    return (found[1] for text in texts for found in SOURCE_LINE.finditer(str(text)))


def excerpt(path: Path, line: int) -> html.Ol:
    lines = path.read_text(errors="replace").splitlines()
    first = max(1, line - AROUND)
    here: dict[str, Any] = {"aria-current": "true", "className": "here"}
    rows = [
        html.Li(clean(text) or " ", **(here if number == line else {}))
        for number, text in enumerate(lines[first - 1 : line + AROUND], first)
    ]
    return html.Ol(rows, start=str(first), className="source")
