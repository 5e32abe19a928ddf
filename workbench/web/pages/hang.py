"""Who waits for whom; `?group=NAME` chooses the process group."""

from typing import Any

import pandas as pd
from dash import html

from analyzers.hangs import views
from analyzers.wording import ranges
from workbench.console import clean
from workbench.present.hang import operations, standing
from workbench.present.sections import hang
from workbench.web.components.figure import drawn
from workbench.web.components.hang import matrix
from workbench.web.components.text import choice, table
from workbench.web.view import View

COLLECTIVES = 60
UNFOLDED = 32
"""Up to so many ranks have a row each; of more, those that read the same are put together."""


def layout(view: View, query: dict[str, str]) -> html.Div:
    if "hang" not in view.parts:
        return html.Div("This run holds no Flight Recorder dumps.")
    data = view.parts["hang"]
    return html.Div(
        [
            *(group_of(view, query) if data.groups else []),
            *(table(section) for section in hang(data) if section.rows),
            table(standing(views.places(view.run, view.options))),
            merged(views.stacks(view.run, view.options)),
        ]
    )


def group_of(view: View, query: dict[str, str]) -> list[Any]:
    """Matrix and operations of the group that is asked for, else of the one that broke."""
    data = view.parts["hang"]
    wanted = query.get("group", data.culprits[0].group if data.culprits else None)
    group = next((g for g in data.groups if g.name == wanted), data.groups[0])
    frame = views.matrix(view.run, group.name, COLLECTIVES, view.options)
    frame = frame if len(frame) <= UNFOLDED else views.folded(frame)
    names = [(g.name, g.desc or g.name) for g in data.groups]
    return [
        choice("group", names, group.name),
        html.H2(f"Group {clean(group.name)} ({clean(group.desc)}), ranks {ranges(group.ranks)}"),
        drawn("matrix", matrix(frame), "Ranks down, collectives across, the state of each"),
        table(operations(views.operations(view.run, group.name, options=view.options))),
    ]


def merged(stacks: pd.DataFrame) -> html.Details:
    """The stacks of all ranks as one tree; where they part, the ranks tell who went where."""
    lines = [
        html.Li(
            [f"{clean(name)} ", html.Code(clean(place)), f" rank {ranges(ranks)}"],
            style={"marginLeft": f"{min(depth, 40) / 2}rem"},
        )
        for depth, name, place, ranks in zip(*(stacks[c] for c in ("depth", "name", "place", "ranks")), strict=True)
    ]
    return html.Details([html.Summary("Stacks, merged over ranks"), html.Ul(lines, className="stacks")], open=True)
