"""Charts of a parity report: loss or gradient norm of all runs, and each run's difference from the first run."""

from collections.abc import Sequence

from dash import html
from dash.development.base_component import Component

from workbench.console import clean
from workbench.present.parity_lines import Lines
from workbench.web.components.figure import ABOVE, FigurePart, drawn, plain, plain_layout
from workbench.web.theme import theme

_SYMBOLS = ("circle", "triangle-up", "square", "diamond", "cross", "x", "triangle-down", "star")
"""Plotly's names for the signs by which the terminal app marks the runs."""
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
_INNERMOST, _RING = 5, 5
"""The smallest size of an open marker, and the step to the next size: markers of equal values surround each other."""
FEW = 12


def line_figure(lines: Lines, name: str) -> Component:
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
