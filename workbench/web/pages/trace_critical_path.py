"""The critical path of a trace's last step: a row in the chart of events, and a table of its longest pieces.

`?path=1` in the address shows the path. By default it is left out, because computing the path of a large trace takes
seconds.
"""

from collections.abc import Mapping
from functools import lru_cache

import pandas as pd
from dash import html

from analyzers.run import Artefact
from analyzers.store import Options
from analyzers.traces import critical_parts, views
from analyzers.traces.kernel_names import shortened
from analyzers.traces.model import RankTrace
from analyzers.words import duration_ns
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.tables.trace import critical_path
from workbench.web.components.links import Elements, link, table
from workbench.web.query import Query, address
from workbench.web.served_run import ServedRun
from workbench.web.step_window import without_window

_PIECES = 30
AROUND = 2
"""The time that a link to a piece of the path shows before and after the piece, in durations of the piece."""
KEPT = 16


def _account_of(served: ServedRun, artefact: Artefact) -> RankTrace:
    """Return the `RankTrace` (the report's data about a trace) of a file: of its first device, else of its host."""
    accounts = served.rooms.trace.ranks if served.rooms.trace else []
    return next(account for account in accounts if account.path == str(artefact.path))


def path_of(served: ServedRun, artefact: Artefact) -> pd.DataFrame:
    """Return the critical path of a trace's last step, as a table with a row per piece.

    If the trace does not mark steps, the path covers the whole recording.
    """
    steps = [step.step for step in _account_of(served, artefact).step_times]
    return _path_through(artefact, served.options, steps[-1] if steps else None)


@lru_cache(KEPT)
def _path_through(artefact: Artefact, options: Options, step: int | None) -> pd.DataFrame:
    """Return the critical path of a step as a table; None stands for the whole recording.

    The result is cached, because a zoom asks for the same path again.
    """
    return views.critical_path(artefact, options, step)


def path_section(served: ServedRun, artefact: Artefact, query: Query) -> Elements:
    """Return two tables of the critical path: its parts, such as one kernel, and its longest pieces as links."""
    parts, path = critical_parts(_account_of(served, artefact), served.options), path_of(served, artefact)
    longest = path.nlargest(_PIECES, "dur_ns", keep="first").sort_values("start_ns")
    spans = longest[["start_ns", "dur_ns"]].itertuples()
    links = {
        _piece_name(position): link(_piece_name(position), _piece_address(start, dur, query), fixed=True)
        for position, start, dur in spans
    }
    return [
        html.H2("Critical path", id="critical"),
        table(critical_path(parts)),
        table(_piece_list(longest), links.get),
    ]


def _piece_name(position: int) -> str:
    """Return the name of the piece at index `position` of the critical path, such as `#1` for index 0."""
    return f"#{position + 1}"


def _piece_address(start: int, dur: int, query: Mapping[str, str]) -> str:
    """Return the address at which the chart of events shows a piece of the critical path and some time around it.

    `start` and `dur` are the piece's start time and duration in ns.
    """
    low, high = max(0, start - AROUND * dur), start + (1 + AROUND) * dur
    return address({**without_window(query), "from": str(low), "to": str(high)})


def _piece_list(longest: pd.DataFrame) -> Table:
    """Return a table of pieces of the critical path, in the order of `longest`, which is sorted by time."""
    rows = (
        (_piece_name(position), shortened(name), kind, duration_ns(at), duration_ns(dur))
        for position, at, dur, kind, name in longest[["start_ns", "dur_ns", "kind", "name"]].itertuples()
    )
    return table_of(
        "Longest pieces of the path, in order of time", "piece | name | kind | start> | duration>", rows, _PIECES
    )
