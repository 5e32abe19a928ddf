"""Divide the character cells of a chart among its stacked layers, so that each layer has the right area.

A cell can show two colours, one below the other; the boundary is at an eighth of its height. A layer may lose area to
this limit. The lost area is added to the same layer in the next columns, so that even a layer thinner than a cell is
visible.
"""

from typing import NamedTuple

import numpy as np

from analyzers.columns import Floats

EIGHTHS = 8
_MOST_OWED = 8.0
"""The most eighths by which one cell may correct a layer's area; more would draw the layer where it is not."""


class Cell(NamedTuple):
    """One character cell of a chart: layer number `below` fills its lower `eighths`, layer number `above` the rest."""

    eighths: int
    below: int
    above: int

    @property
    def larger(self) -> int:
        """The number of the layer that fills more of the cell."""
        return self.below if self.eighths > EIGHTHS // 2 else self.above


def stacked_cells(layers: Floats, top: float, rows: int) -> list[list[Cell]]:
    """Return the cells of each column of a stacked chart, from the bottom up.

    `layers` has the shape (columns, layers), the lowest layer first, in any unit; `top` is the value at the upper
    edge of the `rows` cells. Layers are numbered from 0; the empty space above them has the number of layers.

    For example, with `rows` = 1 and `top` = 8, a column with the layers 5 and 3 becomes `[Cell(5, 0, 1)]`: the lower
    five eighths of the cell have the colour of layer 0, the rest that of layer 1.
    """
    columns, count = layers.shape
    # The tiny divisor is for a table of zeros, whose top is 0.
    heights = np.nan_to_num(np.maximum(layers, 0.0)) / max(top, 1e-300) * rows * EIGHTHS
    dealt, owed = _deal_eighths(heights, rows * EIGHTHS), np.zeros(count + 1)
    return [[divided(runs, owed) for runs in _runs_of_cells(dealt[column], rows)] for column in range(columns)]


def _deal_eighths(heights: Floats, total: int) -> list[list[int]]:
    """Return, for each column, the height of each layer in eighths of a cell; the empty space above comes last.

    The heights of a column add up to `total`. The top of the stack is rounded separately in each column. Area that a
    layer loses by rounding is added to the layer in the next column.
    """
    owed, columns = np.zeros(heights.shape[1]), []
    for column in heights:
        filled = min(total, round(float(column.sum())))
        counts = _largest_remainder(np.maximum(column + owed, 0.0), filled)
        owed = np.clip(owed + column - counts, -1.0, 1.0)
        columns.append([*counts.tolist(), total - filled])
    return columns


def _largest_remainder(wanted: Floats, total: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Round the numbers in `wanted` to whole numbers whose sum is `total`.

    All are rounded down; then those that lost most get one more. (1.6, 1.3, 0.1) with a total of 3 becomes (2, 1, 0).
    """
    counts = np.floor(wanted).astype(np.int64)
    while (missing := total - int(counts.sum())) > 0:
        counts[np.argsort(counts - wanted, kind="stable")[:missing]] += 1
    while missing < 0:
        counts[np.argmax(np.where(counts > 0, counts - wanted, -np.inf))] -= 1
        missing += 1
    return counts


def _runs_of_cells(counts: list[int], rows: int) -> list[list[tuple[int, int]]]:
    """Return, for each cell of a column from the bottom up, its layers as (layer, eighths).

    `counts` has the height of each layer in eighths. For example, with two cells, the heights 5 and 11 become `[[(0,
    5), (1, 3)], [(1, 8)]]`.
    """
    cells: list[list[tuple[int, int]]] = [[] for _ in range(rows)]
    height = 0
    for layer, count in enumerate(counts):
        end = height + count
        while height < end:
            taken = min(end - height, EIGHTHS - height % EIGHTHS)
            cells[height // EIGHTHS].append((layer, taken))
            height += taken
    return cells


def divided(runs: list[tuple[int, int]], owed: Floats) -> Cell:
    """Return a cell with at most two colours that shows the layers in `runs` with the least error.

    `runs` are (layer, eighths), from the bottom up. `owed` is the area, in eighths, that earlier cells left out of each
    layer; this function updates it. The top of the whole stack is always drawn at its true height.
    """
    if len(runs) == 1:
        return Cell(EIGHTHS, runs[0][0], runs[0][0])
    blank = len(owed) - 1
    edges = [len(runs) - 1] if runs[-1][0] == blank else range(1, len(runs))
    best = min((_candidate(runs, edge, owed) for edge in edges), key=lambda cell: lost(runs, cell, owed))
    for layer, eighths in runs:
        owed[layer] += eighths
    owed[best.below] -= best.eighths
    owed[best.above] -= EIGHTHS - best.eighths
    np.clip(owed, -_MOST_OWED, _MOST_OWED, out=owed)
    return best


def _candidate(runs: list[tuple[int, int]], edge: int, owed: Floats) -> Cell:
    """Return a cell with two colours: one for the runs before index `edge`, one for the others.

    `runs` are (layer, eighths), from the bottom up. `owed` is the area, in eighths, that earlier cells left out of each
    layer. Each colour is that of the layer with the most area to draw, including this area.
    """
    lower, upper = runs[:edge], runs[edge:]
    below, above = (max(part, key=lambda run: run[1] + float(owed[run[0]]))[0] for part in (lower, upper))
    return Cell(sum(eighths for _, eighths in lower), below, above)


def lost(runs: list[tuple[int, int]], cell: Cell, owed: Floats) -> float:
    """Return the error of drawing some layers as `cell`: missing plus excess area, in eighths of a character cell.

    `runs` has the number and the area of each layer in this cell. `owed` is the area that earlier cells left out of
    each layer (negative: they drew too much). Both areas are in eighths of a cell.
    """
    drawn = {cell.below: cell.eighths}
    drawn[cell.above] = drawn.get(cell.above, 0) + EIGHTHS - cell.eighths
    return sum(abs(eighths + float(owed[layer]) - drawn.get(layer, 0)) for layer, eighths in runs)
