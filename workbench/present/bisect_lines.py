"""Compute the charts of `workbench bisect` for terminal, dashboard and HTML: differences by operation and by step."""

import math

import pandas as pd

from analyzers.parity.bisect_views import step_table
from analyzers.parity.findings import value_name_of
from analyzers.parity.model import ValueKind
from analyzers.words import relative
from workbench.present.parity_lines import Lines, logarithm

_HIGHEST = 10.0
"""The relative difference at which infinite differences are drawn.

A difference is infinite if a tensor is finite in only one of the runs, or if its sizes differ.
"""
_DIFFERENCE, _ALLOWED = "difference", "allowed by rounding"


def operation_lines(table: pd.DataFrame, step: int) -> Lines:
    """Return the chart of a step's tensors in the order of computation: the difference, and the allowed difference."""
    rows = table[table["step"] == step]
    values = {_DIFFERENCE: rows["difference"], _ALLOWED: rows["tolerance"]}
    drawn = pd.DataFrame({name: column.map(height) for name, column in values.items()})
    drawn.index = pd.Index(rows["position"].to_numpy(), name="operation")
    title = f"Difference of B from A by operation of step {step} (log scale)"
    return Lines(title, drawn, power=True, axis="operation", texts=_operation_texts(rows))


def step_lines(table: pd.DataFrame) -> Lines:
    """Return the chart of the largest difference of each step."""
    steps = step_table(table)
    drawn = pd.DataFrame({"largest difference": steps["largest"].map(height)})
    texts = [
        f"largest difference {difference_text(largest)}, {beyond} of {tensors} tensors beyond rounding"
        for largest, beyond, tensors in zip(steps["largest"], steps["beyond"], steps["tensors"], strict=True)
    ]
    return Lines("Largest difference of B from A by step (log scale)", drawn, power=True, texts=texts)


def height(difference: float) -> float:
    """Return the height at which a relative difference is drawn: its decimal logarithm; infinity is at the top."""
    return logarithm(min(difference, _HIGHEST)) if not math.isnan(difference) else difference


def _operation_texts(rows: pd.DataFrame) -> list[str]:
    """Return a text for each tensor: what it is, by how much it differs, and how much is allowed."""
    columns = (rows[name] for name in ("kind", "name", "difference", "tolerance"))
    return [operation_text(*cells) for cells in zip(*columns, strict=True)]


def operation_text(kind: str, name: str, difference: float, allowed: float) -> str:
    """Return a text for one tensor: what it is, by how much it differs, and how much is allowed."""
    sign = "differs" if difference > allowed else "agrees"
    return (
        f"{value_name_of(ValueKind(kind), name)}: {sign}, {difference_text(difference)} (allowed {relative(allowed)})"
    )


def difference_text(difference: float) -> str:
    """Return a relative difference as text; an infinite one becomes `only one is finite, or sizes differ`."""
    return relative(difference) if math.isfinite(difference) else "only one is finite, or sizes differ"
