"""A chart of the state of each collective on each rank: rows are ranks, columns are collectives."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go

from analyzers.words import ranks_label, without_middle
from workbench.colours import COLLECTIVE_SIGNS
from workbench.web.components.figure import COLLECTIVES_ACROSS, NAMES_ABOVE, FigurePart, legend_entry, plain_layout
from workbench.web.theme import narrow, theme

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
