"""Tables of the differences between two runs: measures, settings, time by phase and kernel, memory by category."""

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise

from rich.text import Text

from analyzers.compare import CompareData
from analyzers.memory.diff import Diff
from analyzers.memory.diff import GroupChange as MemoryChange
from analyzers.traces.diff import TraceDiff
from analyzers.words import duration, duration_ns, kernel_name, size
from workbench.colours import DARK
from workbench.console import clean
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
    rows = data.rows[: len(data.rows) - len(data.config)]  # the settings come after the measures
    cells = ((row.what, row.a, row.b, row.change, row.interval) for row in rows)
    return table("Runs side by side", "measure | A> | B> | change> | 95 % interval>", cells, 40)


def settings(data: CompareData) -> Table:
    return table("Settings that differ", "setting | A | B", ((row.what, row.a, row.b) for row in data.config), 40)


def step_phases(data: CompareData) -> Table:
    rows = [(phase.what, phase.a_s, phase.b_s, phase.change_s) for phase in data.phases]
    before, after = sum(phase.a_s for phase in data.phases), sum(phase.b_s for phase in data.phases)
    whole = [("whole step", before, after, after - before)] if rows else []
    return changes("Mean step by phase", _HEADS.format("phase"), [*rows, *whole], duration, 24)


def trace_parts(diff: TraceDiff) -> Table:
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
    return f"{'-' if change < 0 else '+'}{text(abs(change))}"


_ROWS = 10
"""The most parts that have a line of their own; the other parts share one."""
_LEAST_SHARE = 0.002
"""Parts below this share of the larger total have no line of their own: nobody would see their bar."""
_MORE, _LESS, _WHOLE = DARK.hues["violet"], DARK.hues["teal"], DARK.hues["grey"]
NAME, _SHORTEST_BAR = 18, 8


def waterfall_lines(parts: Sequence[tuple[str, float]], ends: tuple[float, float], width: int) -> list[Text]:
    """Return lines of `width` characters: the total of run A, a line for each part, and the total of run B.

    `parts` are (name, seconds), and `ends` are the totals. The line of a part has its name, a bar that starts where the
    bar above ends, and the change with its sign.
    """
    least = _LEAST_SHARE * max(ends)
    shown = [part for part in parts if abs(part[1]) >= least][:_ROWS]
    rest = sum(change for _, change in parts) - sum(change for _, change in shown)
    shown += [("everything else", rest)] if abs(rest) >= least else []
    levels = [ends[0], *accumulate((change for _, change in shown), initial=ends[0])]
    bars = [(0.0, ends[0]), *pairwise(levels[1:]), (0.0, ends[1])]
    names = ["run A", *(clean(name) for name, _ in shown), "run B"]
    texts = [duration(ends[0]), *(signed(change, duration) for _, change in shown), duration(ends[1])]
    label, number = min(NAME, max(map(len, names))), max(map(len, texts))
    # Both totals may be 0.
    scale = max(_SHORTEST_BAR, width - label - number - 3) / max(*levels, ends[1], 1e-9)
    return [
        Text.assemble((f"{name[:label]:>{label}} ", "dim"), *bar(low, high, scale), f" {text}", no_wrap=True)
        for name, (low, high), text in zip(names, bars, texts, strict=True)
    ]


def bar(start: float, end: float, scale: float) -> list[str | tuple[str, str]]:
    low, high = sorted((round(start * scale), round(end * scale)))
    colour = _WHOLE if start == 0 else _MORE if end > start else _LESS
    return [" " * low, ("█" * (high - low) or "▏", colour)]


def step_changes(data: CompareData) -> tuple[list[tuple[str, float]], tuple[float, float]]:
    """Return the change of each phase of the mean step (name, seconds), largest first, and the totals of both runs."""
    parts = [(phase.what, phase.change_s) for phase in data.phases if phase.change_s]
    return parts, (sum(phase.a_s for phase in data.phases), sum(phase.b_s for phase in data.phases))
