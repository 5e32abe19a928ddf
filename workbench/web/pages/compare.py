"""What changed between two runs; `?by=` chooses how memory is grouped, `kind=` what of the traces is listed."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from dash import html

from analyzers.run import Run
from analyzers.steps import views
from analyzers.words import duration
from workbench.ask import ROOMS
from workbench.console import clean
from workbench.present.tables import comparison
from workbench.web.components.comparison import changes, of_bytes, of_time, side_by_side
from workbench.web.components.figure import drawn
from workbench.web.components.text import choice, table, verdict
from workbench.web.components.timing import thinned
from workbench.web.served_run import ServedRun

LISTED = 40


def layout(served: ServedRun, query: dict[str, str]) -> html.Div:
    if "compare" not in served.parts or served.other is None:
        return html.Div("There is nothing to compare with: open two runs with `workbench compare A B --web`.")
    data = served.parts["compare"]
    return html.Div(
        [
            verdict(served.report),
            html.P(["a: ", named(served.run, "a"), ", b: ", named(served.other, "b")], className="hint"),
            *step_time(data),
            *traced(data.traces, query),
            *memory(data.memory, query),
            *series(served.run, served.other),
            *(table(one) for one in (comparison.measures(data), comparison.settings(data)) if one.rows),
        ]
    )


def named(run: Run, side: str) -> html.A:
    """A run by its folder, leading to its own dashboard."""
    return html.A(clean(run.root), href=f"open/{side}/")


def step_time(data: Any) -> Iterator[Any]:
    """What a mean step of the logs gained and lost."""
    if not data.phases:
        return
    parts = [(one.what, one.change_s) for one in data.phases if one.change_s]
    whole = (sum(one.a_s for one in data.phases), sum(one.b_s for one in data.phases))
    yield html.H2("Where the time of a mean step changed")
    yield drawn("step-change", of_time(parts, whole), "From the mean step of a to that of b, by phase")
    yield table(comparison.step_phases(data))


def traced(found: Any, query: dict[str, str]) -> Iterator[Any]:
    """The same of the profiled steps, and the kernels behind it."""
    if found is None:
        return
    parts = [(one.what, one.change_ns / 1e9) for one in found.parts]
    whole = (found.step_a_ns / 1e9, found.step_b_ns / 1e9)
    yield html.H2("Where the time of a traced step changed")
    yield drawn("trace-change", of_time(parts, whole), "From the traced step of a to that of b, by part")
    yield table(comparison.trace_parts(found))
    if found.memory:
        yield table(comparison.device_memory(found, LISTED))
    if not (kinds := comparison.changed_kinds(found)):
        return
    kind = chosen(query, "kind", kinds)
    rows = [(one.name, one.change_ns / 1e9) for one in found.changes if one.kind == kind]
    yield choice("kind", [(name, f"by {name}") for name in kinds], kind, query)
    yield drawn("kernel-change", changes(rows, duration), f"Time a step that each {kind} gained or lost")
    yield table(comparison.trace_changes(found, kind, LISTED))


def memory(found: Any, query: dict[str, str]) -> Iterator[Any]:
    """Who holds more or less at the peak of the fullest device."""
    if found is None:
        return
    by = chosen(query, "by", comparison.GROUPINGS)
    rows = [(one.what, one.bytes) for one in getattr(found, by) if one.bytes]
    yield html.H2("Who holds more or less at the peak")
    yield choice("by", [(name, f"by {name}") for name in comparison.GROUPINGS], by, query)
    yield drawn("memory-change", of_bytes(rows, (found.a_bytes, found.b_bytes)), f"The peak of a and b, by {by}")
    yield table(comparison.memory_changes(found, by, LISTED))


def chosen(query: Mapping[str, str], name: str, known: Any) -> str:
    """What the address names, else the first."""
    return query[name] if query.get(name) in known else str(known[0])


def series(*runs: Run) -> Iterator[Any]:
    """Step time and loss of both, step by step."""
    logs = {side: run.of(*ROOMS["steps"]) for side, run in zip("ab", runs, strict=True)}
    known = {side: views.series(found) for side, found in logs.items() if found}
    for column, title, unit in (("dur_s", "Duration of each step", "seconds"), ("loss", "Loss", "loss")):
        lines = {side: by_step(frame, column) for side, frame in known.items() if frame[column].notna().any()}
        if lines:
            yield html.H2(f"{title} in both runs")
            yield drawn(f"both-{column}", side_by_side(lines, unit), f"{title}, a line a run")


def by_step(frame: pd.DataFrame, column: str) -> "pd.Series[float]":
    """The highest over ranks at each step: of times the step's own, as all wait for the slowest."""
    highest = frame.dropna(subset=column).groupby("step")[column].max()
    return thinned(highest.to_frame())[column]
