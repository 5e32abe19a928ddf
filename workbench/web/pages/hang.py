"""Who waits for whom; `?group=NAME` chooses the process group, `rank=N` whose stack stands out."""

import re
from typing import Any

import pandas as pd
from dash import Dash, Input, Output, State, html, no_update

from analyzers.hangs import views
from analyzers.words import rank_ranges
from workbench.console import clean
from workbench.present.tables.hang import current_positions, hang_tables, operations
from workbench.web.components.collective_matrix import matrix
from workbench.web.components.figure import drawn
from workbench.web.components.text import address, choice, place, table
from workbench.web.served_run import ServedRun, asked, number

COLLECTIVES = 60
ALL = -1
UNFOLDED = 32
"""Up to so many ranks have a row each; of more, those that read the same are put together."""


def layout(served: ServedRun, query: dict[str, str]) -> html.Div:
    if "hang" not in served.parts:
        return html.Div("This run holds no Flight Recorder dumps.")
    data = served.parts["hang"]
    return html.Div(
        [
            *(group_of(served, query) if data.groups else []),
            *(table(section) for section in hang_tables(data) if section.rows),
            table(current_positions(views.locations(served.run, served.options))),
            *merged(views.stacks(served.run, served.options), query),
        ]
    )


def group_of(served: ServedRun, query: dict[str, str]) -> list[Any]:
    """Matrix and operations of the group that is asked for, else of the one that broke."""
    data = served.parts["hang"]
    wanted = query.get("group", data.culprits[0].group if data.culprits else None)
    group = next((g for g in data.groups if g.name == wanted), data.groups[0])
    frame = views.matrix(served.run, group.name, COLLECTIVES, served.options)
    frame = frame if len(frame) <= UNFOLDED else views.folded(frame)
    names = [(g.name, g.desc or g.name) for g in data.groups]
    told = table(operations(views.operations(served.run, group.name, options=served.options)))
    return [
        choice("group", names, group.name, query),
        html.H2(f"Group {clean(group.name)} ({clean(group.desc)}), ranks {rank_ranges(group.ranks)}"),
        drawn("matrix", matrix(frame), "Ranks down, collectives across, the state of each"),
        html.P("Click a rank to see where it stands.", className="hint"),
        html.Div(told, id="operations"),
    ]


def merged(stacks: pd.DataFrame, query: dict[str, str]) -> list[Any]:
    """The stacks of all ranks as one tree; where they part, the ranks tell who went where."""
    known = sorted({rank for ranks in stacks["ranks"] for rank in ranks})
    if not known:
        return []
    rank = number(query, "rank", max(known) + 1, ALL)
    lines = [
        html.Li(
            [f"{clean(name)} ", place(line), f" rank {rank_ranges(ranks)}"],
            style={"marginLeft": f"{min(depth, 40) / 2}rem"},
            className="" if rank == ALL else "here" if rank in ranks else "dim",
        )
        for depth, name, line, ranks in zip(*(stacks[c] for c in ("depth", "name", "place", "ranks")), strict=True)
    ]
    names = [("", "all ranks"), *((str(one), f"rank {one}") for one in known[:UNFOLDED])]
    return [
        html.H2("Stacks, merged over ranks", id="stacks"),
        choice("rank", names, "" if rank == ALL else str(rank), query),
        html.Ul(lines, className="stacks"),
    ]


def install(app: Dash, served: ServedRun) -> None:
    """A click on a rank of the matrix lets its stack stand out."""
    if "hang" not in served.parts:
        return

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("matrix", "clickData"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def choose(clicked: Any, search: str | None) -> Any:
        """A row of many ranks stands for the first of them."""
        found = re.search(r"\d+", str(clicked["points"][0]["y"])) if clicked else None
        return address(asked(search) | {"rank": found[0]}) if found else no_update
