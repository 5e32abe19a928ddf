"""A map of the allocator's segments: each row is a segment, divided into cells.

The colour of a cell stands for the category with the most bytes in the cell.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import pandas as pd
import plotly.graph_objects as go

from analyzers.words import size
from workbench.colours import CATEGORY_LETTERS, text_colour
from workbench.web.components.figure import NAMES_ABOVE, legend_entry, plain, plain_layout
from workbench.web.theme import theme

LINE = 80
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
        row: f"{category.replace('_', ' ')}, {size(count)} at {at[row]}<br>{plain(line[-LINE:])}"
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
