"""Turn the metrics that torchtitan logs (TensorBoard scalars, console lines) into lines of a step log.

torchtitan logs them every few steps; each value is a mean over these steps, and `covers` is their number. The logged
times are wrong in torchtitan's first lines (it divides by the logging interval even after a single step). So the time
of a step is computed as the time between two records, divided by the number of steps between them.
"""

import math
from collections.abc import Iterable
from pathlib import Path

from analyzers.steps.reading import tensorboard
from analyzers.steps.reading.log_lines import UNKNOWN, Line, Log
from analyzers.steps.reading.tensorboard_table import table_of

GIB = 1 << 30
LOSS = "loss_metrics/global_avg_loss"
_RATES = ("throughput(tps)", "tps", "wps")
_DATA_WAIT = "time_metrics/data_loading(s)"
_ACTIVE_SHARE = "memory/max_active(%)"
_ACTIVE, RESERVED = "memory/max_active(GiB)", "memory/max_reserved(GiB)"
_OWN_TAGS = (LOSS, _DATA_WAIT, _ACTIVE, RESERVED, *_RATES, "grad_norm", "loss", "memory")
"""The tags that all versions of torchtitan, and this project's trainer, log; a file with none is another trainer's."""
_NO_LOSS = -1.0
"""The value that ranks without the last pipeline stage log in place of a loss."""

Values = dict[str, float]


def read(path: Path) -> Log:
    """Return the steps in a TensorBoard event file.

    If neither torchtitan nor this project's trainer wrote it, its rows are returned as a table, in `raw`.
    """
    events = tensorboard.read(path)
    tags = {scalar.tag for scalar in events.scalars}
    if not tags.intersection(_OWN_TAGS):
        table = table_of(events.scalars)
        table.torn, table.damaged = events.torn, events.damaged
        return Log([], [], raw=table)
    return Log([], lines_of(events.scalars), events.torn, events.damaged)


def lines_of(scalars: Iterable[tensorboard.Scalar]) -> list[Line]:
    """Return a `Line` for each training step that has scalars, in order of steps."""
    steps: dict[int, Values] = {}
    times: dict[int, float] = {}
    for scalar in scalars:
        steps.setdefault(scalar.step, {})[scalar.tag] = scalar.value
        # The first scalar of a step is written when the step ends.
        times.setdefault(scalar.step, scalar.wall_s)
    lines = [line_of(step, values) for step, values in sorted(steps.items()) if _is_training(values)]
    set_times(lines, times)
    for line in lines:
        set_tokens(line, steps[line.step])
    return lines


def _is_training(values: Values) -> bool:
    """Return whether the values logged for a step include a training value, and not only values of a validation."""
    return any(tag in values for tag in (LOSS, "grad_norm", _DATA_WAIT, *_RATES, "loss", "memory"))


def line_of(step: int, values: Values) -> Line:
    """Return the `Line` of a step, from the values that were logged for it by tag."""
    loss = values.get(LOSS, values.get("loss"))
    reserved = gib(values.get(RESERVED, values.get("memory")))
    return Line(
        step,
        phases={"data_wait": round(values[_DATA_WAIT] * 1e9)}
        if math.isfinite(values.get(_DATA_WAIT, math.nan))
        else {},
        loss=None if loss == _NO_LOSS else loss,
        grad_norm=None if loss == _NO_LOSS else values.get("grad_norm"),
        memory_bytes=gib(values.get(_ACTIVE)) or reserved,
        reserved_bytes=reserved,
        limit_bytes=limit(values),
    )


def limit(values: Values) -> int | None:
    """Return the memory limit in bytes; None if it cannot be computed.

    It is computed from the active memory in GiB and the active memory in per cent of the limit.
    """
    active, share = gib(values.get(_ACTIVE)), values.get(_ACTIVE_SHARE, 0.0)
    return round(100 * active / share) if active and 0 < share <= 100 else None


def gib(value: float | None) -> int:
    """Return a size given in GiB as bytes; 0 if it is no usable number."""
    # The bound keeps a damaged value within 64 bits.
    return round(value * GIB) if value is not None and math.isfinite(value) and abs(value) < 1 << 30 else 0


def set_times(lines: Iterable[Line], times: dict[int, float]) -> None:
    """Set the duration of each line, in order of steps, to the mean time per step since the previous line.

    The start time, the number of covered steps and the time outside of phases are set, too. `times` is {step: Unix
    seconds at which it ended}.
    """
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
    """Set the number of tokens of a line, from the logged tokens per second and the duration of the line."""
    per_second = next((values[name] for name in _RATES if name in values), math.nan)
    if line.dur_ns != UNKNOWN and math.isfinite(per_second) and abs(per_second) < 1e15:
        line.tokens = round(per_second * line.dur_ns / 1e9)
