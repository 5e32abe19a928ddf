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
from workbench.source import NAMED, source_of
from workbench.web.served_run import View

AROUND = 25


def layout(view: View, query: dict[str, str]) -> html.Div:
    """Only files that the run itself names are shown: the address is no way to any other."""
    at = query.get("at", "")
    place = source_of(at) if view.trusted and named(view, at) else None
    if place is None:
        return html.Div(f"The source of {clean(at) or 'nothing'} is not on this machine, or not part of this run.")
    path, line = place
    return html.Div([html.H2(f"{clean(path)}:{line}"), excerpt(path, line)])


def named(view: View, at: str) -> bool:
    """Whether the report, or an artefact of the run, speaks of this file."""
    found = NAMED.fullmatch(at)
    if found is None:
        return False
    path = found[1]
    return at.encode() in view.report.json() or any(
        one == path or one.replace("\\", "/").endswith(f"/{path}") for one in files(view)
    )


def files(view: View) -> Iterator[str]:
    """The source files that stacks, events and dumps of the run name; files are looked into as far as it takes."""
    for snapshot in view.run.of(Kind.SNAPSHOT) if "memory" in view.parts else ():
        yield from memory.files(snapshot, view.options)
    for trace in view.run.of(Kind.TRACE) if "trace" in view.parts else ():
        yield from in_texts(traces.names(trace, view.options))
    if "hang" in view.parts:
        yield from in_texts(hangs.stacks(view.run, view.options)["place"])
        for group in view.parts["hang"].groups:
            yield from in_texts(hangs.operations(view.run, group.name, options=view.options).to_numpy().ravel())


def in_texts(texts: Any) -> Iterator[str]:
    return (found[1] for text in texts for found in NAMED.finditer(str(text)))


def excerpt(path: Path, line: int) -> html.Ol:
    lines = path.read_text(errors="replace").splitlines()
    first = max(1, line - AROUND)
    here: dict[str, Any] = {"aria-current": "true", "className": "here"}
    rows = [
        html.Li(clean(text) or " ", **(here if number == line else {}))
        for number, text in enumerate(lines[first - 1 : line + AROUND], first)
    ]
    return html.Ol(rows, start=str(first), className="source")
