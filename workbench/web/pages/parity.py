"""The page that compares runs of the same training on several meshes.

It shows curves such as the loss, differences by step, and the first tensor that differs.
"""

from collections.abc import Iterator, Sequence

import pandas as pd
from dash import html
from dash.development.base_component import Component

from analyzers.errors import WorkbenchError
from analyzers.parity import BisectData, ParityData
from analyzers.parity.bisect_report import first_step, operation_table
from analyzers.parity.model import Curve
from workbench.console import clean
from workbench.present.parity_lines import Lines, all_lines, operation_lines, step_lines
from workbench.present.tables.parity import (
    agreement,
    bisect_tables,
    both_sides,
    differences_of,
    first_values,
    steps_of,
    tensors_of,
)
from workbench.rooms import EvidenceLink
from workbench.web.components.figure import ABOVE, FigurePart, drawn, plain, plain_layout, theme
from workbench.web.components.links import choice, table, verdict
from workbench.web.page import Page
from workbench.web.query import Query, number
from workbench.web.served_run import ServedRun

_SYMBOLS = ("circle", "triangle-up", "square", "diamond", "cross", "x", "triangle-down", "star")
"""Plotly's names for the signs by which the terminal app marks the runs."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_INNERMOST, _RING = 5, 5
"""The smallest size of an open marker, and the step to the next size: markers of equal values surround each other."""
FEW = 12


def _line_figure(lines: Lines, name: str) -> Component:
    """Return a chart with one line per run, as an HTML figure with the id `name`."""
    steps, count = [int(step) for step in lines.table.index], len(lines.names)
    figure: FigurePart = {
        "data": [trace(lines, number, steps, _INNERMOST + _RING * (count - 1 - number)) for number in range(count)],
        "layout": {
            **plain_layout(),
            "height": 330,
            "legend": ABOVE,
            "showlegend": True,
            "hovermode": "x unified",
            "xaxis": {"title": lines.axis, **({"dtick": 1} if len(steps) <= FEW else {})},
            "yaxis": _power_axis(lines) if lines.power else {"automargin": True},
            "shapes": [_tolerance_line(lines.mark)] if lines.mark is not None else [],
        },
    }
    return html.Div([html.H2(clean(lines.title)), drawn(name, figure, clean(lines.title))])


def trace(lines: Lines, number: int, steps: list[int], size: int) -> FigurePart:
    """Return the Plotly trace of the line with index `number` over these steps; `size` is the size of its markers."""
    values = lines.table[lines.names[number]].tolist()
    run = number + lines.offset
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plain(lines.names[number]),
        "x": steps,
        "y": values,
        "customdata": _hover_texts(lines, number, values),
        "hovertemplate": "%{customdata}",
        "line": {"color": theme().nth(run), "width": 1.5, "dash": _DASHES[run % len(_DASHES)]},
        "marker": {"symbol": f"{_SYMBOLS[run % len(_SYMBOLS)]}-open", "size": size, "line": {"width": 2}},
    }


def _hover_texts(lines: Lines, number: int, values: Sequence[float]) -> list[str]:
    """Return the hover text of each point of the line with index `number`.

    The text is the exact value. The first line (index 0) shows the items of `lines.texts` instead, if there are any.
    """
    if lines.texts and not number:
        return [plain(text) for text in lines.texts]
    return [lines.exact(value) for value in values]


def _power_axis(lines: Lines) -> FigurePart:
    """Return the y axis for a chart whose values are logarithms; the tick labels are the original numbers."""
    low, high = lines.heights()
    ticks = list(range(int(low // 1), int(-(-high // 1)) + 1))
    return {
        "tickvals": ticks,
        "ticktext": [lines.text(tick) for tick in ticks],
        "range": [low - 0.3, high + 0.3],
        "automargin": True,
    }


def _tolerance_line(height: float) -> FigurePart:
    line = {"color": theme().hues["warning"], "width": 1.5, "dash": "dash"}
    return {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": height, "y1": height, "line": line}


_ROWS = 1000


def layout(served: ServedRun, _query: Query) -> html.Div:
    """Return the page that compares runs of the same training on several meshes."""
    data = served.data(ParityData)
    if data is None:
        return html.Div("To compare meshes: workbench parity --config x.toml --run dp_shard=2 --run tp=2 --web")
    by_step = [of(data, curve, _ROWS) for curve in Curve for of in (differences_of, steps_of)]
    return html.Div(
        [
            verdict(served.report),
            *(table(section) for section in (first_values(data), agreement(data)) if section.rows),
            *(_line_figure(lines, f"parity-{number}") for number, lines in enumerate(all_lines(data))),
            *(table(section) for section in by_step if section.rows),
        ]
    )


# The page that compares two recorded runs operation by operation; `?step=` selects the step that is shown.
#
# The page begins with the first operation whose tensors differ, and shows the tensors of both runs.

_STEP_LIMIT = 1 << 40


def _bisect_layout(served: ServedRun, query: Query) -> html.Div:
    """Return the page that shows where two recorded runs first differ."""
    data = served.data(BisectData)
    if data is None or served.other is None:
        return html.Div("To find where two recorded runs differ: workbench bisect A B --web")
    return html.Div(
        [
            verdict(served.report),
            *operations(served, query),
            *(table(section) for section in bisect_tables(data) if section.rows),
        ]
    )


def operations(served: ServedRun, query: Query) -> Iterator[Component]:
    """Yield tables of both runs at the first difference, charts by operation and by step, and the step's tensors."""
    data = served.data(BisectData)
    assert data is not None
    assert served.other is not None
    try:
        tensors = operation_table(served.run, served.other, served.options, data.tolerance)
    except WorkbenchError as error:
        yield html.P(clean(error.message))
        return
    if data.first:
        yield table(both_sides(tensors, data.first, _ROWS))
    yield from _of_step(tensors, number(query, "step", _STEP_LIMIT, first_step(data, tensors)))


def _of_step(tensors: pd.DataFrame, step: int) -> Iterator[Component]:
    """Yield links to all steps, charts of the differences by operation and by step, and a table of the tensors.

    `step` is the selected step; if it was not recorded, the first recorded step is shown.
    """
    steps = sorted(map(int, tensors["step"].unique()))
    if not steps:
        return
    shown = step if step in steps else steps[0]
    options = choice("step", [(str(one), f"step {one}") for one in steps], str(shown))
    yield from [options] if options else []
    yield _line_figure(operation_lines(tensors, shown), "bisect-operations")
    yield _line_figure(step_lines(tensors), "bisect-steps")
    yield table(tensors_of(tensors, shown, _ROWS))


def _evidence_query(_served: ServedRun, at: EvidenceLink) -> Query:
    return {} if at.step is None else {"step": str(at.step)}


PAGE = Page("Parity", layout)
BISECT_PAGE = Page("Bisect", _bisect_layout, query=_evidence_query)
