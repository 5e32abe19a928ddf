"""The page on hangs; `?group=NAME` selects the process group, `rank=N` the rank whose stack is highlighted.

`library=1` shows the library frames of the merged stacks.
"""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import pandas as pd
import plotly.graph_objects as go
from dash import Dash, Input, Output, State, html, no_update

from analyzers.hangs import views
from analyzers.hangs.model import Group, HangData
from analyzers.words import process_group, rank_names, rank_pattern, ranks_label, without_middle
from workbench.colours import COLLECTIVE_SIGNS
from workbench.console import clean
from workbench.present.collective_matrix import group_in_view, rank_states
from workbench.present.tables.hang import current_positions, hang_tables, largest_first, operations
from workbench.rooms import EvidenceLink
from workbench.web.components.figure import (
    COLLECTIVES_ACROSS,
    NAMES_ABOVE,
    Drawing,
    FigurePart,
    drawn,
    legend_entry,
    narrow,
    plain_layout,
    theme,
)
from workbench.web.components.links import (
    Elements,
    Tab,
    choice,
    labelled,
    not_recorded,
    prose,
    source_code,
    table,
    table_tab,
    workspace,
)
from workbench.web.components.tree import FRAMES
from workbench.web.page import Page, clicked_point, rank_query
from workbench.web.query import Query, address, number, parse_query
from workbench.web.served_run import ServedRun

_MOST_LABELS, _MOST_NARROW_LABELS = 16, 6
_LONGEST_LABEL, _LONGEST_NARROW_LABEL = 28, 16
"""The most characters of a row's label, and the same for a window as narrow as a phone's."""
FEW = 30
"""The most collectives side by side that leave room for a sign in each cell; with more, completed ones have none."""


def collective_matrix(frame: pd.DataFrame) -> go.Figure:
    """Return a heat map of the states of collectives; colour and symbol of a cell show the state.

    `frame` is the result of `hangs.views.matrix`, with a row per rank and a column per collective.
    """
    states = list(theme().states)
    names = [f"#{column}" for column in frame.columns]
    shown = COLLECTIVE_SIGNS if frame.shape[1] <= FEW else COLLECTIVE_SIGNS | {"done": ""}
    codes = frame.map(lambda state: states.index(state) if state in states else len(states) - 1)
    scale = [(edge / len(states), theme().states[s]) for i, s in enumerate(states) for edge in (i, i + 1)]
    figure = go.Figure(
        go.Heatmap(
            z=codes.to_numpy(),
            x=names,
            y=[ranks_label(ranks) for ranks in frame.index],
            text=frame.map(lambda state: shown.get(state, "?")).to_numpy(),
            texttemplate="%{text}",
            textfont={"size": 13},
            customdata=frame.to_numpy(),
            hovertemplate="%{y}, collective %{x}: %{customdata}<extra></extra>",
            zmin=0,
            zmax=len(states),
            colorscale=scale,
            showscale=False,
            xgap=2,
            ygap=2,
        ),
        layout=plain_layout(),
    )
    for state in (name for name in states if (frame == name).to_numpy().any()):
        figure.add_trace(_state_entry(state, shown[state]))
    figure.update_layout(showlegend=True, legend=NAMES_ABOVE)
    figure.update_layout(xaxis=COLLECTIVES_ACROSS | _last_ticks(names), yaxis=_ranks_down(figure.data[0].y))
    return figure.update_layout(height=150 + 26 * max(3, len(frame)))


def _ranks_down(labels: Sequence[str]) -> FigurePart:
    longest = _LONGEST_NARROW_LABEL if narrow() else _LONGEST_LABEL
    shown = [without_middle(label, longest) for label in labels]
    return {"autorange": "reversed", "automargin": True, "tickvals": [*labels], "ticktext": shown}


def _state_entry(state: str, sign: str) -> go.Scatter:
    if state:
        return legend_entry(f"{sign}  {state}".strip(), theme().states[state])
    entry = legend_entry("not recorded", theme().states[state])
    return entry.update(marker={"line": {"color": theme().hues["rule"], "width": 1}})


def _last_ticks(names: Sequence[str]) -> FigurePart:
    most = _MOST_NARROW_LABELS if narrow() else _MOST_LABELS
    every = max(1, -(-len(names) // most))
    return {"tickvals": list(names[::-1][::every][::-1]), "tickangle": 0}


_COLLECTIVES, _NARROW_COLLECTIVES = 60, 16
"""The most collectives that a chart of their states shows, and the same for a window as narrow as a phone's."""
_ALL_RANKS = -1
_SINGLE_RANKS = 32
"""The most ranks that have a row each; if there are more, ranks with equal rows share one."""
_FEW_COLLECTIVES, _FEW_RANKS = 24, 12
"""The same two limits in the chart on the first page; the collective that hangs is among the last ones."""
_DEEPEST_INDENT = 40


def layout(served: ServedRun, query: Query) -> html.Div:
    data = served.data(HangData)
    if data is None:
        return not_recorded(
            "Flight Recorder dumps",
            "They are written when a job hangs that was started with",
            "workbench launch -- COMMAND",
        )
    stacks = views.stacks(served.run, served.options)
    bar, canvas = _group_section(served, data, query) if data.groups else ([], [])
    return workspace(bar, canvas, inspector(served, data, stacks, query), tabs(served, data, stacks, query), query)


def _group_section(served: ServedRun, data: HangData, query: Query) -> tuple[Elements, Elements]:
    """Return (controls, matrix of states) for a process group: the one in the address, or else the one that hangs."""
    group = _shown_group(data, query)
    frame = _states_in_window(served, group, _COLLECTIVES, _SINGLE_RANKS)
    names = group_names(data.groups)
    of = f" ({group.description})" if group.description else ""
    title = f"Group {group.name}{of}, ranks {rank_pattern(group.ranks)}"
    bar: Elements = [
        html.H2(clean(title)),
        choice("group", names, group.name, query, "a process group"),
        html.P("Click a rank to highlight its stack.", className="hint"),
    ]
    return bar, [drawn("matrix", collective_matrix(frame), "The state of each collective (across) on each rank (down)")]


def group_names(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """Return (name, text) of process groups for a list, the largest first; the text is different for each of them."""
    counts = Counter(group.label for group in groups)
    return [
        (g.name, g.label if counts[g.label] == 1 else f"{g.label}, ranks {rank_pattern(g.ranks)}")
        for g in largest_first(groups)
    ]


def inspector(served: ServedRun, data: HangData, stacks: pd.DataFrame, query: Query) -> Elements:
    """Return what the report says about the hang, and the Python stack of a rank.

    It is the rank in the address, or else the first culprit that has a stack.
    """
    lead = next((found for found in served.report.findings if found.id.startswith("hang.")), None)
    known = sorted({rank for ranks in stacks["ranks"] for rank in ranks})
    rank = _shown_rank(query, known)
    if rank == _ALL_RANKS:
        rank = next((rank for culprit in data.culprits for rank in culprit.ranks if rank in known), _ALL_RANKS)
    mine = stacks[stacks["ranks"].map(lambda ranks: rank in ranks).astype(bool)]
    frames = stack_lines(mine)
    return [
        *([html.H2(clean(lead.title)), html.P(prose(lead.why)), labelled("Next", prose(lead.next))] if lead else []),
        *([html.H2(f"Stack of rank {rank}, outermost call first"), html.Ol(frames)] if frames else []),
        None if lead or frames else html.P("No collective hangs, and no stack was recorded.", className="hint"),
    ]


def stack_lines(stack: pd.DataFrame) -> Elements:
    """Return the frames of a stack as items of a list; several library frames in a row are one item.

    The innermost frame always has an item of its own.
    """
    lines: Elements = []
    for own, run in groupby(stack.iloc[:-1].itertuples(), key=lambda frame: bool(frame.own)):
        frames = list(run)
        if own or len(frames) == 1:
            lines += [html.Li(source_code(f"{frame.name} {frame.place}")) for frame in frames]
        else:
            lines.append(html.Li(f"{len(frames)} calls inside libraries", className="hint"))
    return [*lines, *(html.Li(source_code(f"{frame.name} {frame.place}")) for frame in stack.iloc[-1:].itertuples())]


def tabs(served: ServedRun, data: HangData, stacks: pd.DataFrame, query: Query) -> Sequence[Tab]:
    positions = current_positions(views.locations(served.run, served.options))
    rest = [section for section in (*hang_tables(data), positions) if section.rows]
    of_group = [Tab("operations", "Operations", lambda: _operation_section(served, data, query))] if data.groups else []
    merged = [Tab("stacks", "Python stacks", lambda: _merged_stacks(stacks, query))] if len(stacks) else []
    return [*of_group, *merged, *(table_tab(f"table-{number}", section) for number, section in enumerate(rest, 1))]


def _operation_section(served: ServedRun, data: HangData, query: Query) -> Elements:
    group = _shown_group(data, query).name
    return [html.Div(table(operations(views.operations(served.run, group, options=served.options))), id="operations")]


def _shown_group(data: HangData, query: Query) -> Group:
    return group_in_view(data, query.get("group"))


def _states_in_window(served: ServedRun, group: Group, collectives: int, single_ranks: int) -> pd.DataFrame:
    columns = min(collectives, _NARROW_COLLECTIVES) if narrow() else collectives
    return rank_states(served.run, group, columns, single_ranks, served.options)


def _shown_rank(query: Query, known: Sequence[int]) -> int:
    return number(query, "rank", max(known, default=0) + 1, _ALL_RANKS)


def _merged_stacks(stacks: pd.DataFrame, query: Query) -> Elements:
    known = sorted({rank for ranks in stacks["ranks"] for rank in ranks})
    if not known:
        return []
    rank, library = _shown_rank(query, known), query.get("library") == "1"
    shown = stacks if library else views.without_libraries(stacks)
    lines = [
        html.Li(
            [f"{clean(name)} ", source_code(line), f" {rank_names(ranks)}"],
            style={"marginLeft": f"{min(depth, _DEEPEST_INDENT) / 2}rem"},
            className="" if rank == _ALL_RANKS else "here" if rank in ranks else "dim",
        )
        for depth, name, line, ranks in zip(*(shown[c] for c in ("depth", "name", "place", "ranks")), strict=True)
    ]
    names = [("", "all ranks"), *((str(one), f"rank {one}") for one in known[:_SINGLE_RANKS])]
    return [
        html.H2("Python stacks of all ranks, merged", id="stacks"),
        choice("rank", names, "" if rank == _ALL_RANKS else str(rank), query, "a rank"),
        choice("library", FRAMES, "1" if library else "0", query, "the frames of stacks"),
        html.Ul(lines, className="stacks"),
    ]


def install(app: Dash, served: ServedRun) -> None:
    if served.data(HangData) is None:
        return

    @app.callback(
        Output("asked", "data", allow_duplicate=True),
        Input("matrix", "clickData"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def highlight_rank(click: object, search: object) -> object:
        point = clicked_point(click)
        rank = re.search(r"\d+", str(point.get("y"))) if point else None  # of a row of several ranks the first
        return address(parse_query(search) | {"rank": rank[0], "tab": "stacks"}) if rank else no_update


def _evidence_query(served: ServedRun, at: EvidenceLink) -> Query:
    culprits = data.culprits if (data := served.data(HangData)) else []
    group = next((c.group for c in culprits if at.rank in (None, *c.ranks) and c.group), None)
    return ({"group": group} if group else {}) | rank_query(served, at)


def _evidence_drawing(served: ServedRun, at: EvidenceLink) -> Drawing | None:
    """Return a chart of the state of the last collectives on each rank, with its caption; None if none is recorded.

    It shows the process group that the finding's rank blocks.
    """
    data = served.data(HangData)
    if data is None or not data.groups:
        return None
    group = _shown_group(data, _evidence_query(served, at))
    frame = _states_in_window(served, group, _FEW_COLLECTIVES, _FEW_RANKS)
    title = f"State of the last collectives of {process_group(group.label)}, by rank"
    return None if frame.empty else (title, collective_matrix(frame))


PAGE = Page(
    "Hang",
    layout,
    install=install,
    query=_evidence_query,
    drawing=_evidence_drawing,
    tabs={"operations": "operations", "stacks": "stacks"},
)
