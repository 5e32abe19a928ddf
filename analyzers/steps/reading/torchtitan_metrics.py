"""Scalars of TensorBoard and lines of a console -> lines of a step log.

Both are written every few steps and tell of all steps since: `covers` counts them. What they say of time is wrong at
torchtitan's first lines (it divides by the logging interval even after one step), so a step's time is that between two
records, divided by the steps between.
"""

import math
from collections.abc import Iterable
from pathlib import Path

from analyzers.steps.reading import tensorboard
from analyzers.steps.reading.log_lines import UNKNOWN, Line, Log

GIB = 1 << 30
LOSS = "loss_metrics/global_avg_loss"
RATES = ("throughput(tps)", "tps", "wps")
WAIT = "time_metrics/data_loading(s)"
ACTIVE_SHARE = "memory/max_active(%)"
ACTIVE, RESERVED = "memory/max_active(GiB)", "memory/max_reserved(GiB)"
NOT_HERE = -1.0
"""The loss that ranks without one print."""

Values = dict[str, float]


def read(path: Path) -> Log:
    """The steps that an event file tells of."""
    found = tensorboard.read(path)
    return Log([], lines_of(found.scalars), found.torn, found.damaged)


def lines_of(scalars: Iterable[tensorboard.Scalar]) -> list[Line]:
    """A line for each step of training that scalars tell of, in order."""
    steps: dict[int, Values] = {}
    times: dict[int, float] = {}
    for scalar in scalars:
        steps.setdefault(scalar.step, {})[scalar.tag] = scalar.value
        times.setdefault(scalar.step, scalar.wall_s)
    lines = [line_of(step, values) for step, values in sorted(steps.items()) if is_training(values)]
    timed(lines, times)
    for line in lines:
        rate(line, steps[line.step])
    return lines


def is_training(values: Values) -> bool:
    """Whether it is not a validation alone."""
    return any(tag in values for tag in (LOSS, "grad_norm", WAIT, *RATES, "loss", "memory"))


def line_of(step: int, values: Values) -> Line:
    """A line of the values that torchtitan logs."""
    loss = values.get(LOSS, values.get("loss"))
    reserved = gib(values.get(RESERVED, values.get("memory")))
    return Line(
        step,
        phases={"data_wait": round(values[WAIT] * 1e9)} if math.isfinite(values.get(WAIT, math.nan)) else {},
        loss=None if loss == NOT_HERE else loss,
        grad_norm=None if loss == NOT_HERE else values.get("grad_norm"),
        memory_bytes=gib(values.get(ACTIVE)) or reserved,
        reserved_bytes=reserved,
        limit_bytes=limit(values),
    )


def limit(values: Values) -> int | None:
    """What the active memory is told to be a part of."""
    active, share = gib(values.get(ACTIVE)), values.get(ACTIVE_SHARE, 0.0)
    return round(100 * active / share) if active and 0 < share <= 100 else None


def gib(value: float | None) -> int:
    return round(value * GIB) if value is not None and math.isfinite(value) and abs(value) < 1 << 30 else 0


def timed(lines: Iterable[Line], times: dict[int, float]) -> None:
    """Give each line, in order of steps, the time since the one before it."""
    before: Line | None = None
    for line in lines:
        ended = times.get(line.step, math.nan)
        since = ended - times.get(before.step, math.nan) if before else math.nan
        line.start_ns = round(ended * 1e9) if math.isfinite(ended) and abs(ended) < 9e9 else 0
        if before and 0 <= since < 9e9:
            line.covers = line.step - before.step
            line.dur_ns = round(since * 1e9 / line.covers)
            line.start_ns -= round(since * 1e9)
            line.residual_ns = line.dur_ns - sum(line.phases.values())
        before = line


def rate(line: Line, values: Values) -> None:
    """The tokens of a step, out of the tokens a second."""
    per_second = next((values[name] for name in RATES if name in values), math.nan)
    if line.dur_ns != UNKNOWN and math.isfinite(per_second) and abs(per_second) < 1e15:
        line.tokens = round(per_second * line.dur_ns / 1e9)
