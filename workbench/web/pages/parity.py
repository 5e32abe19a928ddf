"""The page that compares runs of the same training on several meshes.

It shows curves such as the loss, differences by step, and the first tensor that differs.
"""

from dash import html

from analyzers.parity.model import Curve
from workbench.present.parity_lines import all_lines
from workbench.present.tables.parity import agreement, differences_of, first_values, steps_of
from workbench.web.components.links import table, verdict
from workbench.web.components.parity import line_figure
from workbench.web.query import Query
from workbench.web.served_run import ServedRun

_ROWS = 1000


def layout(served: ServedRun, _query: Query) -> html.Div:
    """Return the page that compares runs of the same training on several meshes."""
    data = served.rooms.parity
    if data is None:
        return html.Div("To compare meshes: workbench parity --config x.toml --run dp_shard=2 --run tp=2 --web")
    by_step = [of(data, curve, _ROWS) for curve in Curve for of in (differences_of, steps_of)]
    return html.Div(
        [
            verdict(served.report),
            *(table(section) for section in (first_values(data), agreement(data)) if section.rows),
            *(line_figure(lines, f"parity-{number}") for number, lines in enumerate(all_lines(data))),
            *(table(section) for section in by_step if section.rows),
        ]
    )
