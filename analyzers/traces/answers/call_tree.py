"""Build call trees of operators, modules or Python functions: calls with the same path of names become one node."""

import numpy as np
import pandas as pd

from analyzers.columns import Column, Integers, Mask
from analyzers.traces.answers.costs import MODULE, is_user_function
from analyzers.traces.columns.nesting import NONE, inclusive_sums, innermost_selected, self_times
from analyzers.traces.reading.distinct import sums_by_code
from analyzers.traces.reading.trace import OPS, Trace

COLUMNS = ("node", "parent", "depth", "name", "count", "host_ns", "own_ns", "device_ns", "kernels")


def tree(trace: Trace, by: str) -> pd.DataFrame:
    """Return the call tree as a table with a row per node and the columns of COLUMNS; a parent precedes its children.

    `by` is the kind of the nodes: "operator", "module", "function" or "user_function" (functions outside libraries).
    `parent` is the `node` of the parent, -1 at a root; `count` is the number of calls. `device_ns` and `kernels` are
    the time and number of kernels launched inside the node, `host_ns` is its host time, and `own_ns` the part of it
    outside its children.

    Example: linear calls mm twice, and mm is also called alone. That makes three nodes: linear, linear > mm with a
    count of 2, and mm with a count of 1.
    """
    c, selected = trace.columns, _is_node(trace, by)
    rows = np.flatnonzero(selected)
    if not len(rows):
        return pd.DataFrame(columns=COLUMNS)
    inner = innermost_selected(selected, c["parent"])
    above = np.where(selected & (c["parent"] >= 0), inner[c["parent"]], NONE)
    node, parents, names = nodes(trace, rows, above)
    calls, duration = _launched_work(trace)
    spent, count = (inclusive_sums(calls, values, c["parent"]) for values in (duration, np.ones_like(duration)))
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
            "depth": _depths_of(parents),
            "name": [trace.names[i] for i in names],
            "count": np.bincount(node[rows], minlength=len(names)),
            **sums,
        }
    )[list(COLUMNS)]


def _is_node(trace: Trace, by: str) -> Mask:
    """Return, for each event of the trace, whether it is a node of the call tree of kind `by`."""
    functions = trace.category_matches({"python_function"})
    if by == "operator":
        return trace.category_matches(OPS)
    if by == "user_function":
        users: Mask = np.array([*map(is_user_function, trace.names)], bool)[trace.columns["name"]]
        return functions & users
    return functions & trace.name_matches(MODULE) if by == "module" else functions


def nodes(trace: Trace, rows: Integers, above: Column) -> tuple[Integers, list[int], list[int]]:
    """Return the tree node of each event of the trace, and the parent and the name of each node.

    Events outside of the tree have the node NONE. Names are indices into `trace.names`. `rows` are the trace rows of
    the events in the tree; `above` has, for each event of the trace, the row of the innermost event of the tree that
    encloses it, or NONE.
    """
    node, name = np.full(len(above), NONE), trace.columns["name"]
    known: dict[tuple[int, int], int] = {}
    # By depth, so that the node around an event is known before the event.
    order = rows[np.argsort(trace.columns["depth"][rows], kind="stable")]
    for row in order.tolist():
        outer = int(node[above[row]]) if above[row] >= 0 else NONE
        node[row] = known.setdefault((outer, int(name[row])), len(known))
    return node, [outer for outer, _ in known], [own for _, own in known]


def _depths_of(parents: list[int]) -> list[int]:
    """Return the number of ancestors of each node; a parent must precede its children."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def _launched_work(trace: Trace) -> tuple[Integers, Column]:
    """Return, for each kernel and copy with a known launch, the trace row of the launching call, and its own ns."""
    c = trace.columns
    rows = np.flatnonzero((c["launch"] >= 0) & (c["launch"] != np.arange(len(c["launch"]))))
    return c["launch"][rows], c["end"][rows] - c["start"][rows]
