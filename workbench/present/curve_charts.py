"""Draw line charts for a standalone HTML page: loss or gradient norm of several runs, and their differences."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from analyzers.parity import BisectData
from analyzers.parity.bisect_views import first_step, operation_table
from analyzers.parity.model import ParityData
from analyzers.run import discover
from analyzers.store import Options
from workbench.axis_ticks import Tick, tick_distance
from workbench.colours import css_nth
from workbench.present.bisect_lines import operation_lines, step_lines
from workbench.present.figure import HEIGHT, WIDTH, Axes, figure
from workbench.present.parity_lines import Lines, all_lines

LEVELS = (0.0, 0.25, 0.5, 0.75, 1.0)
_MOST_STEPS = 6


def parity_charts(data: ParityData) -> Iterator[str]:
    """Yield the HTML figures of a parity report: the curves of all runs, and their differences from the first run's."""
    yield from filter(None, map(line_chart, all_lines(data)))


def bisect_charts(data: BisectData) -> Iterator[str]:
    """Yield the HTML figures of two recorded runs: the differences by operation of the first step that differs, and by
    step.

    Raises:
        WorkbenchError: The recordings are no longer where they were.
    """
    tensors = operation_table(discover(Path(data.a.folder)), discover(Path(data.b.folder)), Options(), data.tolerance)
    charts = (operation_lines(tensors, first_step(data, tensors)), step_lines(tensors))
    yield from filter(None, map(line_chart, charts))


def line_chart(lines: Lines) -> str:
    """Return an HTML figure with one line per run, and a dashed line at `lines.mark`; empty if there is no step."""
    steps = [int(step) for step in lines.table.index]
    low, high = lines.heights()
    if not steps:
        return ""
    # All values may be equal, and even 0.
    spread = (high - low) or abs(high) or 1.0

    def points(line: Sequence[tuple[float, float]]) -> str:
        wide = WIDTH / max(steps[-1] - steps[0], 1)
        finite = ((x, y) for x, y in line if math.isfinite(y))
        return " ".join(f"{(x - steps[0]) * wide:.1f},{(high - y) / spread * HEIGHT:.1f}" for x, y in finite)

    shapes = [
        f'<polyline points="{points(list(zip(steps, lines.table[name].tolist(), strict=True)))}" fill="none"'
        f' stroke="{css_nth(i + lines.offset)}" stroke-width="2"/>'
        for i, name in enumerate(lines.names)
    ]
    if lines.mark is not None:
        # A single step would make a line without length.
        ends = points([(steps[0], lines.mark), (max(steps[-1], steps[0] + 1), lines.mark)])
        shapes.append(f'<polyline points="{ends}" fill="none" stroke="currentColor" stroke-dasharray="6 4"/>')
    colours = {name: css_nth(i + lines.offset) for i, name in enumerate(lines.names)}
    labels = lines.texts_of([low + share * (high - low) for share in LEVELS])
    up = [*zip(LEVELS, labels, strict=True)] if high > low else []
    return figure(lines.title, "".join(shapes), colours, Axes(up, step_ticks(steps, lines.axis)))


def step_ticks(steps: Sequence[int], axis: str) -> list[Tick]:
    """Return labels of steps at round numbers for an axis from the first of them to the last."""
    length = max(steps[-1] - steps[0], 1)
    every = max(1, round(tick_distance(length, _MOST_STEPS)))
    at = [number for number in range(steps[0], steps[-1] + 1) if number % every == 0] or [steps[0]]
    return [((n - steps[0]) / length, f"{axis} {n}" if n == at[0] else str(n)) for n in at]
