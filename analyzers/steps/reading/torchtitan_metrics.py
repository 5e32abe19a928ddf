"""The metrics that torchtitan logs (TensorBoard scalars, console lines) -> lines of a step log.

They are logged every few steps and stand for all steps since: `covers` counts them. The logged times are wrong in
torchtitan's first lines (it divides by the logging interval even after a single step), so the time of a step is that
between two records, divided by the number of steps between them.
"""

import math
from collections.abc import Iterable
from pathlib import Path

from analyzers.steps.reading import tensorboard
from analyzers.steps.reading.log_lines import UNKNOWN, Line, Log
from analyzers.steps.reading.tensorboard_table import table_of

GIB = 1 << 30
LOSS = "loss_metrics/global_avg_loss"
RATES = ("throughput(tps)", "tps", "wps")
DATA_WAIT = "time_metrics/data_loading(s)"
ACTIVE_SHARE = "memory/max_active(%)"
ACTIVE, RESERVED = "memory/max_active(GiB)", "memory/max_reserved(GiB)"
OWN_TAGS = (LOSS, DATA_WAIT, ACTIVE, RESERVED, *RATES, "grad_norm", "loss", "memory")
"""Tags of torchtitan of any age, and of our trainer; files without any of them are somebody else's."""
NO_LOSS = -1.0
"""What ranks without the last pipeline stage log as their loss."""

Values = dict[str, float]


def read(path: Path) -> Log:
    """Return the steps in an event file."""
    events = tensorboard.read(path)
    tags = {scalar.tag for scalar in events.scalars}
    if not tags.intersection(OWN_TAGS):
        table = table_of(events.scalars)
        table.torn, table.damaged = events.torn, events.damaged
        return Log([], [], raw=table)
    return Log([], lines_of(events.scalars), events.torn, events.damaged)


def lines_of(scalars: Iterable[tensorboard.Scalar]) -> list[Line]:
    """Return a line for each training step that has scalars, in order."""
    steps: dict[int, Values] = {}
    times: dict[int, float] = {}
    for scalar in scalars:
        steps.setdefault(scalar.step, {})[scalar.tag] = scalar.value
        # The first scalar of a step is written when the step ends.
        times.setdefault(scalar.step, scalar.wall_s)
    lines = [line_of(step, values) for step, values in sorted(steps.items()) if is_training(values)]
    set_times(lines, times)
    for line in lines:
        set_tokens(line, steps[line.step])
    return lines


def is_training(values: Values) -> bool:
    """Return whether the values are of training, not of a validation alone."""
    return any(tag in values for tag in (LOSS, "grad_norm", DATA_WAIT, *RATES, "loss", "memory"))


def line_of(step: int, values: Values) -> Line:
    """Return a step as a line, from the values logged for it."""
    loss = values.get(LOSS, values.get("loss"))
    reserved = gib(values.get(RESERVED, values.get("memory")))
    return Line(
        step,
        phases={"data_wait": round(values[DATA_WAIT] * 1e9)} if math.isfinite(values.get(DATA_WAIT, math.nan)) else {},
        loss=None if loss == NO_LOSS else loss,
        grad_norm=None if loss == NO_LOSS else values.get("grad_norm"),
        memory_bytes=gib(values.get(ACTIVE)) or reserved,
        reserved_bytes=reserved,
        limit_bytes=limit(values),
    )


def limit(values: Values) -> int | None:
    """Return the memory limit in bytes: active memory is logged in GiB and in per cent of it."""
    active, share = gib(values.get(ACTIVE)), values.get(ACTIVE_SHARE, 0.0)
    return round(100 * active / share) if active and 0 < share <= 100 else None


def gib(value: float | None) -> int:
    """Return GiB in bytes; 0 for what is not a usable number."""
    return round(value * GIB) if value is not None and math.isfinite(value) and abs(value) < 1 << 30 else 0


def set_times(lines: Iterable[Line], times: dict[int, float]) -> None:
    """Set the duration of each line, in order of steps, from the time since the one before it."""
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


def set_tokens(line: Line, values: Values) -> None:
    """Set the tokens of a step from the logged tokens per second."""
    per_second = next((values[name] for name in RATES if name in values), math.nan)
    if line.dur_ns != UNKNOWN and math.isfinite(per_second) and abs(per_second) < 1e15:
        line.tokens = round(per_second * line.dur_ns / 1e9)
