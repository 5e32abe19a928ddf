"""Charts of a memory snapshot: memory over time, as a tree, by category, and by rank."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from dash import html

from analyzers.columns import Integers
from analyzers.words import quantity, share, size
from workbench.axes import Span, tick_distance
from workbench.colours import CATEGORY_LETTERS, text_colour
from workbench.web.components.figure import (
    ABOVE,
    MARGIN,
    NAMES_ABOVE,
    FigurePart,
    byte_ticks,
    figure_of,
    heat_scale,
    legend_entry,
    narrow,
    plain,
    plain_layout,
    theme,
    ticks_across,
)
from workbench.web.components.links import part_list
from workbench.web.components.tree import LEVELS, Tree, icicle
from workbench.web.query import NO_NODE

_MICROSECONDS = 1e6


@dataclass(frozen=True)
class TimelineAxis:
    """Converts between trace entries and positions on the axis of a memory timeline.

    `times_us` has the time of each entry in µs since the first entry, ascending. Positions are then in seconds. Without
    times, a position is the number of the entry.
    """

    times_us: Integers

    @property
    def unit(self) -> str:
        return "seconds" if len(self.times_us) else "entries"

    def positions(self, entries: Iterable[float]) -> list[float]:
        """Return the positions of trace entries on the axis; a fraction such as entry 2.5 is interpolated."""
        at = np.fromiter(entries, float)
        if not len(self.times_us):
            return [float(entry) for entry in at]
        last = len(self.times_us) - 1
        below = np.clip(np.floor(at), 0, last).astype(np.int64)
        above = np.minimum(below + 1, last)
        part = np.clip(at - below, 0, 1)
        seconds = (self.times_us[below] + part * (self.times_us[above] - self.times_us[below])) / _MICROSECONDS
        return [float(second) for second in seconds]

    def entries(self, span: Span) -> Span:
        """Return the first and the last trace entry in `span`, a range of positions; its ends may be infinite."""
        if not len(self.times_us):
            return span
        low, high = np.searchsorted(self.times_us, np.array(span) * _MICROSECONDS, "left").tolist()
        return float(low), float(high)

    def layout(self, first: float, last: float) -> FigurePart:
        """Return the Plotly layout of the axis, with ticks between the positions `first` and `last`."""
        if not len(self.times_us):
            return {"title": {"text": "trace entry (allocator event)", "standoff": 4}}
        ticks = ticks_across(first * 1e9, last * 1e9)
        return {
            "title": {"text": "time since the first trace entry", "standoff": 4},
            "tickvals": [ns / 1e9 for ns in ticks["tickvals"]],
            "ticktext": ticks["ticktext"],
            # Times are whole microseconds, so that six digits show them exactly; `~` drops trailing zeros.
            "hoverformat": ".6~f",
            "ticksuffix": " s",
        }


WIDTH, _NARROW_WIDTH = 480, 260
"""The least width of a timeline in pixels, and the same for a window as narrow as a phone's."""
LETTER, BETWEEN = 6, 10
"""The width of a letter of a step's label in pixels, and the least space between two labels."""
_PEAK_LETTERS, _HALF_TRIANGLE = 8, 6
"""The width of the name of the peak in letters, and of half of its triangle in pixels."""
_REACH = 0.505
"""The largest distance from the middle of the axis at which the selected instant is marked, as a share of its length.

The last point that is drawn is often some entries before the end of the range.
"""
_DASHES = ("solid", "dash", "dot", "dashdot")
_STACK, LINE = 16, 110
"""The most lines of a call stack in a hover text, and the most characters of a line."""

StepStarts = Sequence[tuple[int, float]]
"""The starts of several steps, each as (step, position on the axis)."""


def timeline(
    frame: pd.DataFrame, parts: Mapping[str, str], starts: StepStarts, cursor: float, axis: TimelineAxis
) -> FigurePart:
    """Return a stacked chart of memory over time, or over trace entries.

    `frame` has the positions on the axis in the column `x`. `parts` maps the columns that are drawn to their colours.
    `starts` are labelled, and `cursor` is the position of the selected instant.
    """
    layers = [layer(name, frame, colour) for name, colour in parts.items() if frame[name].any()]
    return figure_of(layers, _timeline_layout(frame, starts, cursor, axis))


def rank_lines(
    frame: pd.DataFrame, others: Mapping[str, pd.DataFrame], starts: StepStarts, cursor: float, axis: TimelineAxis
) -> FigurePart:
    """Return a chart of allocated memory with a line for each rank.

    `frame` is the table of the selected rank, which is drawn on top and filled; `others` has the tables of other ranks.
    """
    lines = [
        {
            "type": "scatter",
            "x": other["x"].tolist(),
            "customdata": other["entry"].tolist(),
            **amounts(other["allocated"]),
            "name": name,
            "mode": "lines",
            "line": {"shape": "hv", "width": 1.5, "color": theme().nth(i + 1), "dash": _DASHES[i % len(_DASHES)]},
        }
        for i, (name, other) in enumerate(others.items())
    ]
    mine = layer("this rank", frame.assign(**{"this rank": frame["allocated"]}), theme().nth(0))
    return figure_of([*lines, mine], _timeline_layout(frame, starts, cursor, axis))


def _timeline_layout(frame: pd.DataFrame, starts: StepStarts, cursor: float, axis: TimelineAxis) -> FigurePart:
    first, last = (float(frame["x"].min()), float(frame["x"].max())) if len(frame) else (0.0, 0.0)
    labels = with_room(starts, first, last)
    return {
        "xaxis": axis.layout(first, last),
        "yaxis": {"rangemode": "tozero", **byte_ticks(int(frame["allocated"].max()) if len(frame) else 0)},
        "legend": {**ABOVE, "y": 1.05},  # above the names of the steps
        "margin": {**MARGIN, "r": 18, "b": 34},
        "showlegend": True,
        "hovermode": "x unified",
        # Plotly keeps the user's zoom across new data while this value stays the same.
        "uirevision": axis.unit,
        "shapes": [
            *(mark(at, theme().hues["error"]) for at in frame["x"][frame["oom"] > 0]),
            *(
                # At the end of the axis at most: Plotly would make it longer.
                [mark(min(max(cursor, first), last), theme().hues["ink"])]
                if abs(cursor - (first + last) / 2) <= _REACH * (last - first)
                else []
            ),
            *(mark(at, theme().hues["edge"]) for _, at, _ in labels),
        ],
        "annotations": [
            *([peak(frame, first, last)] if len(frame) else []),
            *(_step_name(*label, first=i == 0) for i, label in enumerate(labels)),
        ],
    }


def layer(name: str, frame: pd.DataFrame, colour: str) -> FigurePart:
    """Return the Plotly trace of a layer in a stacked chart, from the column `name` of `frame`.

    The custom data of each point is its trace entry, which a click sends to the server.
    """
    return {
        "type": "scatter",
        "x": frame["x"].tolist(),
        "customdata": frame["entry"].tolist(),
        **amounts(frame[name]),
        "name": plain(name),
        "stackgroup": "memory",
        "line": {"shape": "hv", "width": 0.5, "color": colour},
        "fillcolor": colour,
        **_hatched(name, colour),
    }


def amounts(column: "pd.Series[int]") -> FigurePart:
    """Return the values of a Plotly trace in bytes, with hover texts in units such as MiB."""
    texts = [size(int(count)) for count in column]
    return {"y": column.tolist(), "text": texts, "hovertemplate": "%{fullData.name}: %{text}<extra></extra>"}


def _hatched(name: str, colour: str) -> FigurePart:
    pattern = {"shape": "/", "size": 6, "fgcolor": theme().hues["page"], "bgcolor": colour}
    return {"fillpattern": pattern} if name == "unknown" else {}


def _step_name(step: int, at: float, ends: bool, first: bool) -> FigurePart:
    """Return the annotation above the chart that names a step, at the position where the step starts.

    With `ends`, it ends there, because there is no room to the right; the first label says what the numbers are.
    """
    place: FigurePart = {"x": at, "y": 1, "yref": "paper", "yanchor": "bottom", "xanchor": "right" if ends else "left"}
    return place | {"text": label_of(step, first), "showarrow": False, "font": {"size": 10}}


def label_of(step: int, first: bool) -> str:
    return f"step {step}" if first else str(step)


def _letters_wide(count: int, span: float) -> float:
    """Return the length on an axis of length `span` that a label of `count` letters takes, in the narrowest chart."""
    return span * count * LETTER / (_NARROW_WIDTH if narrow() else WIDTH)


def with_room(starts: StepStarts, low: float, high: float) -> list[tuple[int, float, bool]]:
    """Return (step, position, whether its label ends there) of those step starts whose label has enough space.

    `low` and `high` are the ends of the axis. Plotly would extend the axis for a label that reaches beyond them. If not
    all steps have space, the first one and those with round numbers are labelled.
    """
    kept = _that_fit(starts, low, high)
    if len(kept) == len(starts):
        return kept
    every = round(tick_distance(len(starts), len(kept)))
    return _that_fit([(step, at) for i, (step, at) in enumerate(starts) if not i or step % every == 0], low, high)


def _that_fit(starts: StepStarts, low: float, high: float) -> list[tuple[int, float, bool]]:
    """Return (step, position, whether its label ends there) of the step starts, without labels that would overlap."""
    kept: list[tuple[int, float, bool]] = []
    span, taken = high - low, -inf
    between = span * BETWEEN / (_NARROW_WIDTH if narrow() else WIDTH)
    for step, at in starts:
        wide = _letters_wide(len(label_of(step, not kept)), span)
        ends = at + wide > high
        if (at - wide if ends else at) >= taken:
            kept.append((step, at, ends))
            taken = (at if ends else at + wide) + between
    return kept


def mark(at: float, colour: str, dash: str = "solid") -> FigurePart:
    line = {"color": colour, "dash": dash, "width": 1}
    return {"type": "line", "x0": at, "x1": at, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def peak(frame: pd.DataFrame, first: float, last: float) -> FigurePart:
    """Return the annotation that marks the instant with the most allocated memory in the timeline `frame`.

    The word is to the left of the triangle, as the line of a failed allocation follows the peak. `first` and `last`
    are the ends of the axis.
    """
    top = frame.iloc[int(frame["allocated"].to_numpy().argmax())]
    at = float(top["x"])
    if at - first >= _letters_wide(_PEAK_LETTERS, last - first):
        text: FigurePart = {"text": "peak ▼", "xanchor": "right", "xshift": _beside_end(last - at, last - first)}
    else:
        text = {"text": "▼ peak", "xanchor": "left", "xshift": -_beside_end(at - first, last - first)}
    return {"x": at, "y": int(top["allocated"]), "showarrow": False, "yshift": 10, **text}


def _beside_end(distance: float, span: float) -> float:
    """Return how many pixels the triangle of the peak may reach to the end of the axis, which is at this distance.

    Plotly would make the axis longer for a triangle beyond its end.
    """
    return min(_HALF_TRIANGLE, distance / span * (_NARROW_WIDTH if narrow() else WIDTH)) if span else 0.0


def memory_tree(frame: pd.DataFrame, up: int = NO_NODE, find: str = "", levels: int = LEVELS) -> go.Figure:
    """Return an icicle chart of a tree of live memory, at most `levels` high; leaf nodes have their category's colour.

    `frame` is the result of `memory.views.tree`. A click on the chart's root selects the node `up`. Nodes whose path
    does not contain `find` are grey.
    """
    # Of the roots alone, as each child is part of its parent.
    total = int(frame["bytes"][frame["parent"] < 0].sum())
    paths = [[plain(name) for name in path] for path in frame["path"]]
    amounts = zip(map(_path_text, paths), _amounts_of(frame, total), strict=True)
    tree = Tree(
        frame["node"].tolist(),
        frame["parent"].tolist(),
        frame["bytes"].tolist(),
        [path[-1] for path in paths],
        [f"{path}<br>{amount}" for path, amount in amounts],
        [_node_colour(name, path, find) for name, path in zip(frame["name"], paths, strict=True)],
    )
    return icicle(tree, f"{size(total)} live", up, levels)


def category_bars(frame: pd.DataFrame) -> list[html.Ul]:
    some = frame.sort_values("bytes", ascending=False)
    parts = dict(zip(some["category"], some["bytes"].astype(float), strict=True))
    return part_list(parts, theme().categories, lambda count: size(int(count)))


def _amounts_of(frame: pd.DataFrame, total: int) -> list[str]:
    """Return the size of each node of a tree as text, with its blocks and its share of `total` bytes."""
    return [
        f"{size(count)} in {quantity(blocks, 'block')}, {share(count, total)} of what is shown"
        for count, blocks in zip(frame["bytes"], frame["blocks"], strict=True)
    ]


def _path_text(path: Sequence[str]) -> str:
    """Return the innermost names of a tree node's path, such as the lines of a call stack, as HTML for the hover text.

    The outermost of them comes first.
    """
    return "<br>".join(name[:LINE] for name in path[-_STACK:])


def _node_colour(name: str, path: Sequence[str], find: str) -> str:
    if find and not any(find.casefold() in part.casefold() for part in path):
        return theme().hues["empty"]
    return theme().categories.get(name, theme().hues["pale"])


def rank_matrix(frame: pd.DataFrame) -> go.Figure:
    """Return a heat map of bytes at the peak: a row per rank, a column per category.

    `frame` is the result of `analyzers.memory.matrix`.
    """
    amounts = frame[list(theme().categories)]
    figure = go.Figure(
        go.Heatmap(
            z=amounts.to_numpy(),
            x=list(amounts.columns),
            y=[f"rank {rank}, device {device}" for rank, device in zip(frame["rank"], frame["device"], strict=True)],
            text=[[size(int(count)) for count in row] for row in amounts.to_numpy()],
            texttemplate="%{text}",
            hovertemplate="%{y}, %{x}: %{text}<extra></extra>",
            colorscale=heat_scale(),
            showscale=False,
            xgap=1,
            ygap=1,
        ),
        layout=plain_layout(),
    )
    return figure.update_layout(
        yaxis={"autorange": "reversed"}, margin={"l": 130}, height=110 + 26 * min(len(frame), 40)
    )


# A map of the allocator's segments: each row is a segment, divided into cells.
#
# The colour of a cell stands for the category with the most bytes in the cell.

_SEGMENT_MAP_LINE = 80
"""The most characters of a stack frame in a hover text: its end, where the name of the function is."""
_ROOM = 3
"""The smallest number of adjacent cells in which a letter is readable."""


def segment_map(frame: pd.DataFrame, blocks: pd.DataFrame) -> go.Figure:
    """Return a map with a row per segment; colour and letter of a cell name the category with the most bytes in it.

    `frame` is the result of `memory.block_map`. A click on a cell selects the largest block in it: the address of this
    block is looked up in the table `blocks`.
    """
    categories = theme().categories
    names = ["", *categories]
    colours = [theme().hues["empty"], *categories.values()]
    hovers, addresses = _cell_texts(frame, blocks)
    names_of_rows = [f"{i}: {size(total)}" for i, total in enumerate(frame["bytes"], 1)]
    figure = go.Figure(
        go.Heatmap(
            z=[[names.index(name) for name in row] for row in frame["owners"]],
            y=names_of_rows,
            customdata=addresses,
            text=hovers,
            hovertemplate="segment %{y}: %{text}<extra></extra>",
            zmin=0,
            zmax=len(names),
            colorscale=[(edge / len(names), c) for i, c in enumerate(colours) for edge in (i, i + 1)],
            showscale=False,
            ygap=2,
        ),
        layout=plain_layout(),
    )
    figure.add_trace(_letters_in(dict(zip(names_of_rows, frame["owners"], strict=True))))
    for name in categories:
        if any(name in row for row in frame["owners"]):
            figure.add_trace(legend_entry(f"{CATEGORY_LETTERS[name]}  {name.replace('_', ' ')}", categories[name]))
    figure.update_layout(margin={"l": 110, "t": 40}, height=120 + 22 * len(frame), showlegend=True)
    figure.update_layout(legend=NAMES_ABOVE)
    return figure.update_layout(xaxis={"visible": False}, yaxis={"autorange": "reversed", "showgrid": False})


def _cell_texts(frame: pd.DataFrame, blocks: pd.DataFrame) -> tuple[list[list[str]], list[list[str]]]:
    """Return (hover texts, addresses) of the cells, each as a list of rows; a click selects the address of a cell."""
    # Only blocks that fill a cell get a hover text: a snapshot can have hundreds of thousands.
    rows = sorted({row for filled in frame["filled"] for row in filled if row >= 0})
    columns = (blocks.loc[rows, name] for name in ("requested", "category", "frame"))
    at = {row: f"{address:#x}" for row, address in zip(rows, blocks.loc[rows, "address"], strict=True)}
    hovers = {
        row: f"{category.replace('_', ' ')}, {size(count)} at {at[row]}<br>{plain(line[-_SEGMENT_MAP_LINE:])}"
        for row, count, category, line in zip(rows, *columns, strict=True)
    }
    addresses = [
        [at[row] if row >= 0 else middle(segment, total, (cell, len(filled))) for cell, row in enumerate(filled)]
        for segment, total, filled in frame[["address", "bytes", "filled"]].itertuples(index=False)
    ]
    return [[hovers.get(row, "free") for row in filled] for filled in frame["filled"]], addresses


def middle(segment: int, total: int, cell: tuple[int, int]) -> str:
    """Return the memory address in the middle of a cell of the segment map, in hexadecimal.

    The segment starts at the address `segment` and has `total` bytes. `cell` is (index of the cell, number of cells).
    """
    return f"{segment + (2 * cell[0] + 1) * total // (2 * cell[1]):#x}"


def _letters_in(rows: Mapping[str, Sequence[str]]) -> go.Scatter:
    """Return the Plotly trace that writes category letters into a segment map.

    `rows` is {name of a row: category of each of its cells}. Neighbouring cells of the same category share one letter,
    in their middle, if there is space for it.
    """
    letters = [
        (first + (length - 1) / 2, row, CATEGORY_LETTERS[name], text_colour(theme().categories[name]))
        for row, owners in rows.items()
        for name, first, length in _stretches(owners)
        if name and length >= _ROOM
    ]
    x, y, text, colours = zip(*letters, strict=True) if letters else ((),) * 4
    return go.Scatter(
        x=x, y=y, text=text, mode="text", textfont={"color": colours, "size": 10}, hoverinfo="skip", showlegend=False
    )


def _stretches(owners: Sequence[str]) -> Iterator[tuple[str, int, int]]:
    """Yield (name, index of the first item, length) of each run of equal neighbours in `owners`.

    For example, `["a", "a", "b"]` gives `("a", 0, 2)` and `("b", 2, 1)`.
    """
    first = 0
    for name, group in groupby(owners):
        length = len(list(group))
        yield name, first, length
        first += length
