"""Turn TensorBoard scalars of other trainers into rows; `torchtitan_metrics` reads torchtitan's own tags."""

from collections.abc import Iterable

from analyzers.steps.columns import RawTable, RowCollector
from analyzers.steps.reading.tensorboard import Scalar

_CLOCK = "timestamp"


def table_of(scalars: Iterable[Scalar]) -> RawTable:
    """Return scalars as a table with a row per step and a column per tag; each row has the time of its first scalar."""
    rows, row_of = RowCollector(), dict[int, int]()
    for scalar in scalars:
        row = row_of.setdefault(scalar.step, len(row_of))
        if row == rows.count:
            rows.add({"step": scalar.step, _CLOCK: scalar.wall_s})
        rows.set(row, scalar.tag, scalar.value)
    return rows.table()
