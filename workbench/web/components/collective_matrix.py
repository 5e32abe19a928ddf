"""Who stands where: ranks down, collectives across."""

import pandas as pd
import plotly.graph_objects as go

from workbench.colours import COLLECTIVE_SIGNS, COLLECTIVE_STATES
from workbench.web.components.figure import ABOVE, PLAIN, key

FEW = 30
"""Collectives beside each other, of which each has room for a larger sign."""


def matrix(frame: pd.DataFrame) -> go.Figure:
    """Ranks down, collectives across; colour and sign tell the state."""
    states = list(COLLECTIVE_STATES)
    codes = frame.map(lambda state: states.index(state) if state in states else len(states) - 1)
    scale = [(edge / len(states), COLLECTIVE_STATES[s]) for i, s in enumerate(states) for edge in (i, i + 1)]
    figure = go.Figure(
        go.Heatmap(
            z=codes.to_numpy(),
            x=[f"#{column}" for column in frame.columns],
            y=[f"rank {ranks}" for ranks in frame.index],
            text=frame.map(lambda state: COLLECTIVE_SIGNS.get(state, "?")).to_numpy(),
            texttemplate="%{text}",
            textfont={"size": 15 if frame.shape[1] <= FEW else 11},
            customdata=frame.to_numpy(),
            hovertemplate="%{y} %{x}: %{customdata}<extra></extra>",
            zmin=0,
            zmax=len(states),
            colorscale=scale,
            showscale=False,
            xgap=1,
            ygap=1,
        ),
        layout=PLAIN,
    )
    for state in (one for one in states if one and (frame == one).to_numpy().any()):
        figure.add_trace(key(f"{COLLECTIVE_SIGNS[state]}  {state}", COLLECTIVE_STATES[state]))
    figure.update_layout(showlegend=True, legend=ABOVE)
    # Plotly would take #3 for a number.
    figure.update_layout(xaxis={"type": "category"}, yaxis={"autorange": "reversed"})
    return figure.update_layout(height=120 + 26 * len(frame))
