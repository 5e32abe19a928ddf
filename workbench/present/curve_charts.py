"""Lines of a standalone HTML document: the same curve of several runs, and how far each is from the first."""

import math
from collections.abc import Iterator, Mapping, Sequence

from analyzers.parity.answers import relative_difference
from analyzers.parity.model import Curve, ParityData
from analyzers.words import figures, relative
from workbench.colours import nth_colour
from workbench.present.figure import HEIGHT, WIDTH, figure

SMALLEST = 1e-16
"""Differences are drawn on a logarithmic scale, on which nothing has no place."""
NAMES = {Curve.LOSS: "Loss", Curve.GRAD_NORM: "Gradient norm"}
Line = Mapping[int, float]


def parity_charts(data: ParityData) -> Iterator[str]:
    """Yield both curves of all runs, and the differences of the losses from those of the first run."""
    for curve, name in NAMES.items():
        lines = {run.name: run.losses if curve is Curve.LOSS else run.grad_norms for run in data.runs}
        if drawing := line_chart(f"{name} by step", lines):
            yield drawing
    first, *others = data.runs
    differences = {run.name: logarithms(first.losses, run.losses) for run in others}
    title = (
        f"Relative difference of the loss from that of {first.name}, logarithmic; allowed: {relative(data.tolerance)}"
    )
    if drawing := line_chart(title, differences, mark=math.log10(max(data.tolerance, SMALLEST)), power=True):
        yield drawing


def logarithms(before: Line, after: Line) -> dict[int, float]:
    """Return the powers of ten of the relative differences by step."""
    steps = before.keys() & after.keys()
    shares = {step: relative_difference(before[step], after[step]) for step in sorted(steps)}
    return {step: math.log10(max(share, SMALLEST)) for step, share in shares.items() if math.isfinite(share)}


def line_chart(title: str, lines: Mapping[str, Line], mark: float | None = None, *, power: bool = False) -> str:
    """Return an HTML figure with one line a run, and a dashed line at `mark`; empty without a value.

    `power`: the values are powers of ten.
    """
    finite = {name: {x: y for x, y in line.items() if math.isfinite(y)} for name, line in lines.items()}
    values = [y for line in finite.values() for y in line.values()] + ([] if mark is None else [mark])
    steps = sorted({x for line in finite.values() for x in line})
    if not steps:
        return ""
    low, high = min(values), max(values)
    spread = (high - low) or abs(high) or 1.0

    def points(line: Sequence[tuple[float, float]]) -> str:
        wide = WIDTH / max(steps[-1] - steps[0], 1)
        return " ".join(f"{(x - steps[0]) * wide:.1f},{(high - y) / spread * HEIGHT:.1f}" for x, y in line)

    drawn = enumerate(points(sorted(line.items())) for line in finite.values())
    shapes = [f'<polyline points="{ends}" fill="none" stroke="{nth_colour(i)}" stroke-width="2"/>' for i, ends in drawn]
    if mark is not None:
        ends = points([(steps[0], mark), (max(steps[-1], steps[0] + 1), mark)])
        shapes.append(f'<polyline points="{ends}" fill="none" stroke="currentColor" stroke-dasharray="6 4"/>')
    written = [relative(10**value) if power else figures(value) for value in (low, high)]
    head = f"{title}: steps {steps[0]} to {steps[-1]}, from {written[0]} (bottom) to {written[1]} (top)"
    return figure(head, "".join(shapes), {name: nth_colour(number) for number, name in enumerate(finite)})
