"""The page that compares runs of the same training on several meshes.

It shows curves such as the loss, differences by step, and the first tensor that differs.
"""

from collections.abc import Iterator

import pandas as pd
from dash import html
from dash.development.base_component import Component

from analyzers.errors import WorkbenchError
from analyzers.parity import BisectData, ParityData
from analyzers.parity.bisect_report import first_step, operation_table
from analyzers.parity.model import Curve
from workbench.console import clean
from workbench.present.parity_lines import all_lines, operation_lines, step_lines
from workbench.present.tables.bisect import bisect_tables
from workbench.present.tables.bisect_operations import both_sides, tensors_of
from workbench.present.tables.parity import agreement, differences_of, first_values, steps_of
from workbench.rooms import EvidenceLink
from workbench.web.components.links import choice, table, verdict
from workbench.web.components.parity import line_figure
from workbench.web.page import Page
from workbench.web.query import Query, number
from workbench.web.served_run import ServedRun

_ROWS = 1000


def layout(served: ServedRun, _query: Query) -> html.Div:
    """Return the page that compares runs of the same training on several meshes."""
    data = served.data(ParityData)
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


# The page that compares two recorded runs operation by operation; `?step=` selects the step that is shown.
#
# The page begins with the first operation whose tensors differ, and shows the tensors of both runs.

_STEP_LIMIT = 1 << 40


def bisect_layout(served: ServedRun, query: Query) -> html.Div:
    """Return the page that shows where two recorded runs first differ."""
    data = served.data(BisectData)
    if data is None or served.other is None:
        return html.Div("To find where two recorded runs differ: workbench bisect A B --web")
    return html.Div(
        [
            verdict(served.report),
            *operations(served, query),
            *(table(section) for section in bisect_tables(data) if section.rows),
        ]
    )


def operations(served: ServedRun, query: Query) -> Iterator[Component]:
    """Yield tables of both runs at the first difference, charts by operation and by step, and the step's tensors."""
    data = served.data(BisectData)
    assert data is not None
    assert served.other is not None
    try:
        tensors = operation_table(served.run, served.other, served.options, data.tolerance)
    except WorkbenchError as error:
        yield html.P(clean(error.message))
        return
    if data.first:
        yield table(both_sides(tensors, data.first, _ROWS))
    yield from _of_step(tensors, number(query, "step", _STEP_LIMIT, first_step(data, tensors)))


def _of_step(tensors: pd.DataFrame, step: int) -> Iterator[Component]:
    """Yield links to all steps, charts of the differences by operation and by step, and a table of the tensors.

    `step` is the selected step; if it was not recorded, the first recorded step is shown.
    """
    steps = sorted(map(int, tensors["step"].unique()))
    if not steps:
        return
    shown = step if step in steps else steps[0]
    options = choice("step", [(str(one), f"step {one}") for one in steps], str(shown))
    yield from [options] if options else []
    yield line_figure(operation_lines(tensors, shown), "bisect-operations")
    yield line_figure(step_lines(tensors), "bisect-steps")
    yield table(tensors_of(tensors, shown, _ROWS))


def _evidence_query(_served: ServedRun, at: EvidenceLink) -> Query:
    return {} if at.step is None else {"step": str(at.step)}


PAGE = Page("Parity", layout)
BISECT_PAGE = Page("Bisect", bisect_layout, query=_evidence_query)
