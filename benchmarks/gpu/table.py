"""Write the table of results as Markdown: a summary, then a section for each group of cases."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from benchmarks.gpu.case import Row

LONGEST = 160


def markdown(rows: Sequence[Row]) -> str:
    """Return the table with all rows, in sections."""
    states = Counter(str(row.state) for row in rows)
    lines = ["# On a device", "", ", ".join(f"{count} {state}" for state, count in states.items()), ""]
    for section, part in groupby(rows, key=lambda row: row.section):
        lines += [f"## {section}", "", "| case | state | s | measured |", "|---|---|--:|---|"]
        lines += [f"| {row.name} | {row.state} | {row.seconds:.1f} | {cell(row)} |" for row in part]
        lines.append("")
    return "\n".join(lines)


def cell(row: Row) -> str:
    """Return the text of a cell: the error, if any, and the measured values."""
    values = [
        f"{name} {shortened(value)}" for name, value in row.measured.items() if name not in ("output", "traceback")
    ]
    return "; ".join(filter(None, [f"**{escaped(row.problem)}**" if row.problem else "", *values]))


def shortened(value: object) -> str:
    """Return a value as short text that does not break a table."""
    text = value if isinstance(value, str) else json.dumps(value)
    return escaped(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def escaped(text: str) -> str:
    """Return text without characters that would end a table cell or a line."""
    return " ".join(text.split()).replace("|", "\\|")
