"""Tables of two recorded runs: what was compared, and the first tensors that differ."""

from analyzers.parity import BisectData
from analyzers.parity.model import Divergence
from analyzers.words import figures, relative
from workbench.present.table import Table, table

_DIFFERENCE = "what | step> | tensor | kind | module | norm in A> | norm in B> | difference> | allowed>"


def bisect_tables(data: BisectData) -> list[Table]:
    """Return tables of the two runs, of the first differences, and of the tolerance for each dtype."""
    runs = (
        (name, run.folder, run.ranks, f"{run.first_step} to {run.last_step}", run.tensors)
        for name, run in (("A", data.a), ("B", data.b))
    )
    named = (("first difference", data.first), ("first value", data.value), ("first not identical", data.inexact))
    return [
        table("First tensors that differ", _DIFFERENCE, (cells(name, one) for name, one in named if one)),
        table("Recorded runs", "run | folder | ranks> | steps | tensors>", runs),
        table(
            f"Allowed by rounding, for sums of up to {data.longest_sum} terms",
            "dtype | relative difference>",
            ((dtype, relative(allowed)) for dtype, allowed in data.tolerances.items()),
        ),
    ]


def cells(name: str, one: Divergence) -> tuple[object, ...]:
    """Return the cells of a table row for the difference `one`; `name` is the first cell."""
    return (
        name,
        one.step,
        one.tensor,
        one.kind.replace("_", " "),
        one.module,
        figures(one.a),
        figures(one.b),
        relative(one.difference),
        relative(one.tolerance),
    )
