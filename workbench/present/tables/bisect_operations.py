"""Tables of the tensors that two runs recorded: at the first difference, and all tensors of a step."""

from collections.abc import Iterator

import pandas as pd

from analyzers.parity.bisect_report import around
from analyzers.parity.findings import value_name_of
from analyzers.parity.model import Divergence, ValueKind
from analyzers.words import relative
from workbench.present.parity_lines import difference_text
from workbench.present.table import Table, table

COLUMNS = "operation> | tensor | agrees | difference> | allowed> | norm in A> | norm in B> | dtype | module is a"


def both_sides(operations: pd.DataFrame, first: Divergence, limit: int) -> Table:
    """Return the table of the first difference: inputs and outputs of the module in each run, and its neighbours."""
    where = f"{first.module} and its neighbours" if first.module else f"{first.tensor} and its neighbours"
    return table(
        f"Both sides of the first difference: {where} in step {first.step}",
        COLUMNS,
        cells(around(operations, first)),
        limit,
    )


def tensors_of(operations: pd.DataFrame, step: int, limit: int) -> Table:
    rows = operations[operations["step"] == step]
    return table(f"Tensors of step {step} in the order of computation", COLUMNS, cells(rows), limit)


def cells(rows: pd.DataFrame) -> Iterator[tuple[object, ...]]:
    columns = ["position", "kind", "name", "difference", "tolerance", "a", "b", "dtype_a", "dtype_b", "type"]
    for position, kind, name, difference, allowed, a, b, dtype_a, dtype_b, type_ in rows[columns].to_numpy(object):
        yield (
            position,
            value_name_of(ValueKind(kind), name).removeprefix("the "),
            "yes" if difference <= allowed else "NO",
            difference_text(difference),
            relative(allowed),
            f"{a:.6g}",
            f"{b:.6g}",
            dtype_a if dtype_a == dtype_b else f"{dtype_a} in A, {dtype_b} in B",
            type_,
        )
