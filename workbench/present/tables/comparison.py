"""The tables of a comparison: what changed from the first run to the second."""

from collections.abc import Callable
from typing import Any

from analyzers.words import duration, size
from workbench.present.table import Table, table
from workbench.present.tables.trace_rank import kernel_name

GROUPINGS = ("categories", "modules", "lines")
ENDS = "what | a> | b> | change>"


def comparison(data: Any) -> list[Table]:
    """Measures and settings, then what the time and the memory are made of, the largest changes first."""
    return [
        measures(data),
        settings(data),
        phases(data),
        *(traced(data.traces, kind) for kind in kinds(data.traces)[:1]),
        *([allocated(data.traces)] if data.traces else []),
        *(holders(data.memory, by) for by in GROUPINGS if data.memory),
    ]


def measures(data: Any) -> Table:
    told = data.rows[: len(data.rows) - len(data.config)]  # the settings stand behind the measures
    rows = ((row.what, row.a, row.b, row.change, row.interval) for row in told)
    return table("Side by side", "what | a> | b> | change> | 95% interval>", rows, 40)


def settings(data: Any) -> Table:
    rows = ((row.what, row.a, row.b) for row in data.config)
    return table("Settings that differ", "setting | a | b", rows, 40)


def phases(data: Any) -> Table:
    """What a mean step gained and lost; the changes add up."""
    rows = [(one.what, one.a_s, one.b_s, one.change_s) for one in data.phases]
    whole = [("the whole step", *(sum(row[i] for row in rows) for i in (1, 2, 3)))] if rows else []
    return table("A mean step by phase", ENDS, (ends(row, duration) for row in [*rows, *whole]), 24)


def parts(found: Any) -> Table:
    """What a traced step gained and lost; the changes add up."""
    rows = [(one.what, one.a_ns / 1e9, one.b_ns / 1e9, one.change_ns / 1e9) for one in found.parts]
    a, b = found.step_a_ns / 1e9, found.step_b_ns / 1e9
    return table(
        "A traced step by part", ENDS, (ends(row, duration) for row in [*rows, ("the whole step", a, b, b - a)])
    )


def kinds(found: Any) -> list[str]:
    """Of what kinds something changed in the traces."""
    return list(dict.fromkeys(one.kind for one in found.changes)) if found else []


def traced(found: Any, kind: str, limit: int = 12) -> Table:
    """The kernels, operators, modules or phases of which a traced step has more or less."""
    rows = (
        (kernel_name(one.name), one.how, *ends(("", one.a_ns / 1e9, one.b_ns / 1e9, one.change_ns / 1e9), duration)[1:])
        for one in found.changes
        if one.kind == kind
    )
    return table(f"Each {kind} that changed, a step", "what | how | a> | b> | change>", rows, limit)


def allocated(found: Any, limit: int = 16) -> Table:
    """What the traced devices held at most, and what allocates more or less."""
    rows = (
        (one.where, one.kind, one.name or "-", *ends(("", one.a_bytes, one.b_bytes, one.change_bytes), size)[1:])
        for one in found.memory
    )
    return table("Memory in the traces", "of | what | name | a> | b> | change>", rows, limit)


def holders(diff: Any, by: str, limit: int = 8) -> Table:
    """What the fullest devices hold at their peaks, the largest changes first."""
    rows = (
        (c.what, c.state, *ends(("", c.a_bytes, c.b_bytes, c.bytes), size)[1:]) for c in getattr(diff, by) if c.bytes
    )
    return table(f"Memory that changed, by {by}", "what | state | a> | b> | change>", rows, limit)


def ends(row: tuple[str, Any, Any, Any], told: Callable[[Any], str]) -> tuple[str, ...]:
    """A name, both values and the change, as text."""
    what, a, b, change = row
    return what, told(a), told(b), signed(change, told)


def signed(change: float, told: Callable[[Any], str]) -> str:
    return f"{'-' if change < 0 else '+'}{told(abs(change))}"
