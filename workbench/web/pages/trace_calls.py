"""The calls of a trace as a tree: operators, modules or Python functions, by the time of the work that they launched.

`?by=` sets what the nodes are, `under=N` selects a node, and `library=1` shows functions in libraries, too.
"""

from functools import lru_cache

import pandas as pd
from dash import ClientsideFunction, Dash, Input, Output, html

from analyzers.run import Artefact
from analyzers.store import Options
from analyzers.traces import views
from analyzers.traces.answers.costs import is_user_function
from analyzers.traces.kernel_names import user_function
from analyzers.words import duration_ns, quantity, share
from workbench.console import clean
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.web.components.figure import drawn, figure_of_tree, plain
from workbench.web.components.links import Elements, choice, source_code, table
from workbench.web.components.tree import FRAMES, Tree, icicle, subtree, with_room_for_children
from workbench.web.query import NO_NODE, NODES, Query, number
from workbench.web.served_run import ServedRun
from workbench.web.theme import theme

NAME = "calls"
"""The id of the chart, and the name of its tab."""
_CALLS_BY = ("operator", "module", "function")
LEVELS = 40
"""The most levels of calls that are shown at once."""
KEPT, LARGEST, _CALLERS = 4, 40, 12


def calls_section(served: ServedRun, artefact: Artefact, query: Query) -> Elements:
    """Return a chart of the calls as a tree, the path to the selected one, and a table of those with the most time."""
    by = query["by"] if query.get("by") in _CALLS_BY else _CALLS_BY[0]
    library = by != "function" or query.get("library") == "1"
    frame = _call_tree(artefact, served.options, by if library else "user_function")
    controls = html.Div(_tree_controls(by, query), className="controls")
    if frame.empty:
        return [controls, html.P("The trace recorded no calls of this kind.", className="hint")]
    where = "device" if frame["clock"].iloc[0] == "device_ns" else "host"
    hint = f"Time on the {where}. Click a part of the tree to zoom into it, the top bar to zoom out."
    node = number(query, "under", NODES, NO_NODE)
    shown, up = subtree(frame, node, "ns")
    return [
        controls,
        html.P(hint, className="hint"),
        drawn(NAME, icicle(_tree_of(shown), _title_of(shown), up, LEVELS), f"Calls as a tree, by {by}", tree=True),
        *_selected_call(frame, node),
        table(_longest_calls(frame, where)),
    ]


def _tree_controls(by: str, query: Query) -> Elements:
    """Return the controls of the tree: what its nodes are and, of functions, whether those in libraries are shown."""
    # The numbers of nodes are those of one tree.
    kept = {name: value for name, value in query.items() if name != "under"}
    shown = "1" if query.get("library") == "1" else "0"
    return [
        choice("by", [(name, f"by {name}") for name in _CALLS_BY], by, kept, "what the calls are"),
        choice("library", FRAMES, shown, kept, "the functions") if by == "function" else None,
    ]


@lru_cache(KEPT)
def _call_tree(artefact: Artefact, options: Options, by: str) -> pd.DataFrame:
    """Return the table of `traces.views.tree` with three more columns; the result is cached for the next click.

    `ns` is the time on the device or, if nothing ran there, on the host, which `clock` names. `path` has the names of
    the node and the nodes around it, outermost first. Nodes without such time are left out.
    """
    frame = views.tree(artefact, options, by)
    clock = "device_ns" if frame["device_ns"].any() else "host_ns"
    frame = with_room_for_children(frame.assign(ns=frame[clock], clock=clock), "ns")
    paths: dict[int, tuple[str, ...]] = {}
    for node, parent, name in zip(*(frame[column].tolist() for column in ("node", "parent", "name")), strict=True):
        paths[node] = (*paths.get(parent, ()), name)
    return frame.assign(path=pd.Series(paths, frame.index, dtype=object))[frame["ns"] > 0]


def _tree_of(frame: pd.DataFrame) -> Tree:
    """Return what is drawn for each call in `frame`; functions in the user's own files have a colour of their own."""
    total = int(frame["ns"][frame["parent"] < 0].sum())
    facts = (frame[name].tolist() for name in ("path", "ns", "count"))
    hovers = [
        f"{'<br>'.join(plain(name) for name in path[-_CALLERS:])}<br>"
        f"{duration_ns(spent)} in {quantity(count, 'call')}, {share(spent, total)} of what is shown"
        for path, spent, count in zip(*facts, strict=True)
    ]
    hues = theme().hues
    colours = [hues["blue" if is_user_function(name) else "pale"] for name in frame["name"]]
    names = [plain(name) for name in frame["name"]]
    return Tree(frame["node"].tolist(), frame["parent"].tolist(), frame["ns"].tolist(), names, hovers, colours)


def _title_of(frame: pd.DataFrame) -> str:
    """Return the text of the root of the chart: the time of all calls in it."""
    return f"{duration_ns(int(frame['ns'][frame['parent'] < 0].sum()))} in all calls"


def _selected_call(frame: pd.DataFrame, node: int) -> Elements:
    """Return the path to the selected call, outermost first; functions are links to their source."""
    known = frame[frame["node"] == node]
    if known.empty:
        return []
    spent, count, path = (known[name].iloc[0] for name in ("ns", "count", "path"))
    title = f"Selected: {duration_ns(int(spent))} in {quantity(int(count), 'call')}, at"
    return [html.P(title, className="hint"), html.Ol([html.Li(source_code(clean(name))) for name in path], id="path")]


def _longest_calls(frame: pd.DataFrame, where: str) -> Table:
    """Return a table of the calls with the most time; `where` is "device" or "host", where that time was spent."""
    largest = frame.nlargest(LARGEST, "ns", keep="first")
    columns = (largest[name].tolist() for name in ("path", "ns", "count", "own_ns"))
    rows = (
        (
            user_function(path[-1]),
            duration_ns(spent),
            count,
            duration_ns(own),
            user_function(path[-2:][0]) * (len(path) > 1),
        )
        for path, spent, count, own in zip(*columns, strict=True)
    )
    return table_of(
        "Calls with the most time", f"name | {where} time> | calls> | own host time> | called by", rows, LARGEST
    )


def install_calls(app: Dash) -> None:
    """Register the callbacks of the tree: names are shortened to their room, and a click selects a node."""
    fit, choose = (ClientsideFunction("tree", name) for name in ("fit", "choose"))
    stored, clicked = Input(figure_of_tree(NAME), "data"), Input(NAME, "clickData")
    app.clientside_callback(fit, Output(NAME, "figure"), stored)  # type: ignore[no-untyped-call]
    app.clientside_callback(choose, clicked, prevent_initial_call=True)  # type: ignore[no-untyped-call]
