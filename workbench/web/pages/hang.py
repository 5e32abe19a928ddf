"""The page on hangs; `?group=NAME` selects the process group, `rank=N` the rank whose stack is highlighted."""

import re

import pandas as pd
from dash import Dash, Input, Output, State, html, no_update

from analyzers.hangs import views
from analyzers.hangs.model import Group, HangData
from analyzers.words import rank_names
from workbench.console import clean
from workbench.present.tables.hang import current_positions, hang_tables, operations
from workbench.web.components.collective_matrix import collective_matrix
from workbench.web.components.figure import drawn
from workbench.web.components.links import choice, source_code
from workbench.web.components.text import table
from workbench.web.gestures import clicked_point
from workbench.web.pages.elements import Elements
from workbench.web.query import Query, address, number, parse_query
from workbench.web.served_run import ServedRun

COLLECTIVES = 60
ALL_RANKS = -1
SINGLE_RANKS = 32
"""Up to so many ranks have a row each; of more, ranks with equal rows share one."""
DEEPEST_INDENT = 40


def layout(served: ServedRun, query: Query) -> html.Div:
    """Return the page on a hang."""
    data = served.rooms.hang
    if data is None:
        return html.Div("This run has no Flight Recorder dumps.")
    return html.Div(
        [
            *(group_section(served, data, query) if data.groups else []),
            *(table(section) for section in hang_tables(data) if section.rows),
            table(current_positions(views.locations(served.run, served.options))),
            *merged_stacks(views.stacks(served.run, served.options), query),
        ]
    )


def group_section(served: ServedRun, data: HangData, query: Query) -> Elements:
    """Return the matrix and operations of a process group: the one in the address, or else the one that hangs."""
    group = shown_group(data, query)
    frame = rank_states(served, group, COLLECTIVES, SINGLE_RANKS)
    names = [(g.name, g.desc or g.name) for g in data.groups]
    title = f"Group {group.name} ({group.desc}), {rank_names(group.ranks)}"
    return [
        choice("group", names, group.name, query, "a process group"),
        html.H2(clean(title)),
        drawn("matrix", collective_matrix(frame), "The state of each collective (across) on each rank (down)"),
        html.P("Click a rank to highlight its stack below.", className="hint"),
        html.Div(table(operations(views.operations(served.run, group.name, options=served.options))), id="operations"),
    ]


def shown_group(data: HangData, query: Query) -> Group:
    """Return the process group that `query` names, or else the one that hangs."""
    wanted = query.get("group", data.culprits[0].group if data.culprits else None)
    return next((group for group in data.groups if group.name == wanted), data.groups[0])


def rank_states(served: ServedRun, group: Group, collectives: int, single_ranks: int) -> pd.DataFrame:
    """Return the state of the last `collectives` of a process group on each rank, as `hangs.views.matrix` does.

    If there are more than `single_ranks` ranks, those with equal rows share one.
    """
    frame = views.matrix(served.run, group.name, collectives, served.options)
    # Thousands of rows would take the browser seconds, and nearly all of them are equal.
    return frame if len(frame) <= single_ranks else views.folded(frame)


def merged_stacks(stacks: pd.DataFrame, query: Query) -> Elements:
    """Return the stacks of all ranks as a tree; each line names the ranks that have it in their stack."""
    known = sorted({rank for ranks in stacks["ranks"] for rank in ranks})
    if not known:
        return []
    rank = number(query, "rank", max(known) + 1, ALL_RANKS)
    lines = [
        html.Li(
            [f"{clean(name)} ", source_code(line), f" {rank_names(ranks)}"],
            style={"marginLeft": f"{min(depth, DEEPEST_INDENT) / 2}rem"},
            className="" if rank == ALL_RANKS else "here" if rank in ranks else "dim",
        )
        for depth, name, line, ranks in zip(*(stacks[c] for c in ("depth", "name", "place", "ranks")), strict=True)
    ]
    names = [("", "all ranks"), *((str(one), f"rank {one}") for one in known[:SINGLE_RANKS])]
    return [
        html.H2("Python stacks of all ranks, merged", id="stacks"),
        choice("rank", names, "" if rank == ALL_RANKS else str(rank), query, "a rank"),
        html.Ul(lines, className="stacks"),
    ]


def install(app: Dash, served: ServedRun) -> None:
    """Register the callback of the matrix: a click on a rank highlights its stack."""
    if served.rooms.hang is None:
        return

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("matrix", "clickData"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def highlight_rank(click: object, search: object) -> object:
        point = clicked_point(click)
        rank = re.search(r"\d+", str(point.get("y"))) if point else None  # of a row of several ranks the first
        return address(parse_query(search) | {"rank": rank[0]}) if rank else no_update
