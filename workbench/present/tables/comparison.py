"""Tables of the differences between two runs: measures, settings, time by phase and kernel, memory by category."""

from collections.abc import Callable, Mapping, Sequence

from analyzers.compare import CompareData
from analyzers.memory.diff import Diff
from analyzers.memory.diff import GroupChange as MemoryChange
from analyzers.traces.diff.diff import TraceDiff
from analyzers.traces.kernel_names import kernel_name
from analyzers.words import duration, duration_ns, size
from workbench.present.table import Table, table

GROUPINGS: Mapping[str, Callable[[Diff], Sequence[MemoryChange]]] = {
    "categories": lambda diff: diff.categories,
    "modules": lambda diff: diff.modules,
    "lines": lambda diff: diff.lines,
}
"""{name of a grouping in dashboard addresses: function that returns the changes of peak memory in this grouping}."""
SINGULAR = {"categories": "category", "modules": "module", "lines": "source line"}
_HEADS = "{} | A> | B> | change>"

Formatter = Callable[[float], str]


def comparison_tables(data: CompareData) -> list[Table]:
    """Return the tables of a comparison: measures and settings, then the changes of time and memory, largest first."""
    traces = data.traces
    return [
        measures(data),
        settings(data),
        step_phases(data),
        *([trace_changes(traces, kind) for kind in changed_kinds(traces)[:1]] if traces else []),
        *([device_memory(traces)] if traces else []),
        *(memory_changes(data.memory, by) for by in GROUPINGS if data.memory),
    ]


def measures(data: CompareData) -> Table:
    """Return a table that compares step time, throughput, loss and memory of both runs."""
    rows = data.rows[: len(data.rows) - len(data.config)]  # the settings come after the measures
    cells = ((row.what, row.a, row.b, row.change, row.interval) for row in rows)
    return table("Runs side by side", "measure | A> | B> | change> | 95 % interval>", cells, 40)


def settings(data: CompareData) -> Table:
    """Return a table of the settings that differ between the runs."""
    return table("Settings that differ", "setting | A | B", ((row.what, row.a, row.b) for row in data.config), 40)


def step_phases(data: CompareData) -> Table:
    """Return a table of the change of each phase of the mean step; the last row is the sum of the changes."""
    rows = [(phase.what, phase.a_s, phase.b_s, phase.change_s) for phase in data.phases]
    before, after = sum(phase.a_s for phase in data.phases), sum(phase.b_s for phase in data.phases)
    whole = [("whole step", before, after, after - before)] if rows else []
    return changes("Mean step by phase", _HEADS.format("phase"), [*rows, *whole], duration, 24)


def trace_parts(diff: TraceDiff) -> Table:
    """Return a table of the change of each kind of work in a profiled step; the last row is the whole step."""
    rows = [(part.what, part.a_ns, part.b_ns, part.change_ns) for part in diff.parts]
    whole = ("whole step", diff.step_a_ns, diff.step_b_ns, diff.step_b_ns - diff.step_a_ns)
    return changes("Profiled step by kind of work", _HEADS.format("work"), [*rows, whole], duration_ns)


def changed_kinds(diff: TraceDiff) -> list[str]:
    """Return the kinds, out of `kernel`, `operator`, `module` and `phase`, that have changes between the traces."""
    return list(dict.fromkeys(change.kind for change in diff.changes))


def trace_changes(diff: TraceDiff, kind: str, limit: int = 12) -> Table:
    """Return a table of the largest changes of time in a profiled step between two runs.

    `kind` selects the rows: one row per kernel, operator, module or phase.
    """
    rows = (
        (kernel_name(c.name), c.how, duration_ns(c.a_ns), duration_ns(c.b_ns), signed(c.change_ns, duration_ns))
        for c in diff.changes
        if c.kind == kind
    )
    return table(f"Time per profiled step that changed, by {kind}", f"{kind} | how | A> | B> | change>", rows, limit)


def device_memory(diff: TraceDiff, limit: int = 16) -> Table:
    """Return a table that compares device memory in both traces: peaks, and operators and modules that changed."""
    rows = (
        (c.where, c.kind, c.name, size(c.a_bytes), size(c.b_bytes), signed(c.change_bytes, size)) for c in diff.memory
    )
    return table("Device memory in the traces", "device | measure | name | A> | B> | change>", rows, limit)


def memory_changes(diff: Diff, by: str, limit: int = 8) -> Table:
    """Return a table of the changes in peak memory, largest first, grouped by `by`: `categories`, `modules` or `lines`.

    In each run, this is the peak of the device with the highest peak.
    """
    rows = (
        (c.what, c.state, size(c.a_bytes), size(c.b_bytes), signed(c.bytes, size))
        for c in GROUPINGS[by](diff)
        if c.bytes
    )
    name = SINGULAR[by]
    return table(f"Memory that changed, by {name}", f"{name} | state | A> | B> | change>", rows, limit)


def changes(
    title: str, heads: str, rows: Sequence[tuple[str, float, float, float]], text: Formatter, limit: int = 12
) -> Table:
    """Return a table of rows (name, value in run A, value in run B, change); the function `text` formats numbers."""
    cells = ((what, text(a), text(b), signed(change, text)) for what, a, b, change in rows)
    return table(title, heads, cells, limit)


def signed(change: float, text: Formatter) -> str:
    """Return a change as text with its sign; `text` is the function that formats its absolute value."""
    return f"{'-' if change < 0 else '+'}{text(abs(change))}"
