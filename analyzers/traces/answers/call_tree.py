"""Operators, modules or Python functions as a tree of calls; the same path of names is one node."""

import numpy as np
import pandas as pd

from analyzers.columns import Column
from analyzers.traces.answers.costs import MODULE
from analyzers.traces.columns.nesting import NONE, inclusive_sums, innermost_selected, self_times
from analyzers.traces.model import OPS, Trace
from analyzers.traces.reading.distinct import sums_by_code

COLUMNS = ("node", "parent", "depth", "name", "count", "host_ns", "own_ns", "device_ns", "kernels")


def tree(trace: Trace, by: str) -> pd.DataFrame:
    """The columns of COLUMNS; a parent stands before its children, `parent` is -1 at the root.

    `by` is "operator", "module" or "function"; `device_ns` and `kernels` are of what was launched inside, `own_ns` is
    the time outside the node's children.
    """
    c, chosen = trace.columns, nodes_of(trace, by)
    rows = np.flatnonzero(chosen)
    if not len(rows):
        return pd.DataFrame(columns=COLUMNS)
    inner = innermost_selected(chosen, c["parent"])
    above = np.where(chosen & (c["parent"] >= 0), inner[c["parent"]], NONE)
    node, parents, names = paths(trace, rows, above)
    calls, lasting = launched(trace)
    spent, count = (inclusive_sums(calls, values, c["parent"]) for values in (lasting, np.ones_like(lasting)))
    own = self_times(above, c["start"], c["end"])
    sums = {
        name: sums_by_code(node[rows], values[rows], len(names))
        for name, values in (
            ("host_ns", c["end"] - c["start"]),
            ("own_ns", own),
            ("device_ns", spent),
            ("kernels", count),
        )
    }
    return pd.DataFrame(
        {
            "node": np.arange(len(names)),
            "parent": parents,
            "depth": depths(parents),
            "name": [trace.names[i] for i in names],
            "count": np.bincount(node[rows], minlength=len(names)),
            **sums,
        }
    )[list(COLUMNS)]


def nodes_of(trace: Trace, by: str) -> Column:
    functions = trace.category_matches({"python_function"})
    if by == "operator":
        return trace.category_matches(OPS)
    return functions & trace.name_matches(MODULE) if by == "module" else functions


def paths(trace: Trace, rows: Column, above: Column) -> tuple[Column, list[int], list[int]]:
    """(node of each event, parent of each node, number of each node's name)."""
    node, name = np.full(len(above), NONE), trace.columns["name"]
    known: dict[tuple[int, int], int] = {}
    order = rows[np.argsort(trace.columns["depth"][rows], kind="stable")]
    for row in order.tolist():
        outer = int(node[above[row]]) if above[row] >= 0 else NONE
        node[row] = known.setdefault((outer, int(name[row])), len(known))
    return node, [outer for outer, _ in known], [own for _, own in known]


def depths(parents: list[int]) -> list[int]:
    """How many nodes are above each; parents stand before their children."""
    found: list[int] = []
    for parent in parents:
        found.append(found[parent] + 1 if parent >= 0 else 0)
    return found


def launched(trace: Trace) -> tuple[Column, Column]:
    """The row of the call that launched each piece of a device's work, and how long (ns) that took."""
    c = trace.columns
    rows = np.flatnonzero((c["launch"] >= 0) & (c["launch"] != np.arange(len(c["launch"]))))
    return c["launch"][rows], c["end"][rows] - c["start"][rows]
