"""The critical path of a trace's last step: as a row above its events, and in pieces that lead to their windows.

`?path=1` shows it: to find the path of a large trace takes seconds.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pandas as pd
from dash import html

from analyzers.run import Artefact
from analyzers.store import Options
from analyzers.traces import critical_parts, views
from analyzers.traces.critical.path import join_narrow_pieces
from analyzers.traces.structs import RankTrace
from analyzers.words import duration_ns
from workbench.colours import EVENT_KINDS
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.tables.kernel_names import shortened
from workbench.present.tables.trace import critical_path
from workbench.web.components.text import address, go, table
from workbench.web.served_run import ServedRun
from workbench.web.step_window import without_window

LANE = "critical path"
PIECES = 30
AROUND = 2
"""Times its own length is seen of what is around a piece that is led to."""
KEPT = 16


def account_of(served: ServedRun, artefact: Artefact) -> RankTrace:
    """The file's first device, or its host."""
    found: RankTrace = next(one for one in served.parts["trace"].ranks if one.path == str(artefact.path))
    return found


def path_of(served: ServedRun, artefact: Artefact) -> pd.DataFrame:
    """The pieces of the last step, in order; without steps those of the whole recording."""
    steps = [one.step for one in account_of(served, artefact).step_times]
    return path_through(artefact, served.options, steps[-1] if steps else None)


@lru_cache(KEPT)
def path_through(artefact: Artefact, options: Options, step: int | None) -> pd.DataFrame:
    return views.critical_path(artefact, options, step)


def row(served: ServedRun, artefact: Artefact, span: tuple[int, int], width: int) -> pd.DataFrame:
    """The path in a window as blocks of a lane of their own, as `traces.views.timeline` has them, in colours."""
    path = path_of(served, artefact)
    seen = path[(path["start_ns"] < span[1]) & (path["start_ns"] + path["dur_ns"] > span[0])]
    drawn = join_narrow_pieces(seen, (span[1] - span[0]) // width)
    return drawn.assign(
        lane=LANE,
        on_device=True,
        depth=0,
        name=drawn["name"].where(drawn["name"] != "", drawn["kind"]),
        busy_ns=drawn["dur_ns"],
        colour=["" if kind == "host" else kind if kind in EVENT_KINDS else "idle" for kind in drawn["kind"]],
    )


def told(served: ServedRun, artefact: Artefact, query: Mapping[str, str]) -> list[Any]:
    """What the path consists of, and its longest pieces, each a way to its window."""
    parts, path = critical_parts(account_of(served, artefact), served.options), path_of(served, artefact)
    longest = path.nlargest(PIECES, "dur_ns", keep="first").sort_values("start_ns")
    spans = longest[["start_ns", "dur_ns"]].itertuples()
    leads = {name(place): go(name(place), window(start, dur, query), fixed=True) for place, start, dur in spans}
    return [html.H2("Critical path", id="critical"), table(critical_path(parts)), table(pieces(longest), leads.get)]


def name(place: int) -> str:
    return f"#{place + 1}"


def window(start: int, dur: int, query: Mapping[str, str]) -> str:
    """The address of a piece and what is around it."""
    low, high = max(0, start - AROUND * dur), start + (1 + AROUND) * dur
    return address({**without_window(query), "from": str(low), "to": str(high)})


def pieces(longest: pd.DataFrame) -> Table:
    rows = (
        (name(place), shortened(what) or "-", kind, duration_ns(at), duration_ns(dur))
        for place, at, dur, kind, what in longest[["start_ns", "dur_ns", "kind", "name"]].itertuples()
    )
    return table_of("Its longest pieces, in order of time", "piece | name | kind | begins at> | takes>", rows, PIECES)
