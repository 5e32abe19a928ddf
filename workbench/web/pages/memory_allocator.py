"""What the allocator did: the life of every reserved range, and its entries one by one.

`?page=N` turns the pages of the entries; `find=` leaves those that fit.
"""

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from dash import html

from analyzers.memory import views
from analyzers.words import size
from workbench.colours import nth_colour
from workbench.present.tables.snapshot import entry_list, reserved_ranges
from workbench.web.components.figure import ABOVE, PLAIN, drawn, plain
from workbench.web.components.text import choice, table
from workbench.web.pages.memory_segments import leads
from workbench.web.pages.memory_timeline import snapshot
from workbench.web.served_run import Instant, ServedRun, number

RANGES, ROWS = 40, 50


def allocator(
    served: ServedRun, device: Any, at: Instant, query: dict[str, str], span: tuple[int, int] | None
) -> list[Any]:
    """The reserved ranges of the entries in sight, largest first, and a page of these entries."""
    artefact, options, of = snapshot(served, device), served.options, device.device
    ranges = views.reserved_ranges(artefact, options, of, span, RANGES)
    first = page(device, at, query) * ROWS
    found = views.events(artefact, options, of, first, ROWS, at.find)
    told = "Reserved ranges over time" + (" (made up: a CPU has none)" if device.fragmentation.made_up_segments else "")
    return [
        html.H2("What the allocator did"),
        html.P(f"{told}: each from the entry that reserved it to the one that gave it back.", className="hint"),
        drawn("cached", lives(ranges, span or (0, device.entries)), told),
        table(reserved_ranges(ranges), leads(query)),
        turning(first // ROWS, len(found) == ROWS, query),
        table(entry_list(found), leads(query)),
    ]


def page(device: Any, at: Instant, query: dict[str, str]) -> int:
    """The page that the address names, else that of the instant; of what is sought the first."""
    here = 0 if at.find else max(at.entry, 0) // ROWS
    return number(query, "page", device.entries // ROWS + 1, here)


def turning(here: int, more: bool, query: dict[str, str]) -> Any:
    turns = [(here - 1, "earlier")] * (here > 0) + [(here, f"page {here + 1}")] + [(here + 1, "later")] * more
    return choice("page", [(str(to), text) for to, text in turns], str(here), query)


def lives(ranges: pd.DataFrame, span: tuple[int, int]) -> go.Figure:
    """Each range as a bar from the entry that reserved it to the one that gave it back, in the colour of its stream."""
    born, died = ranges["born"].clip(lower=span[0]), ranges["died"].clip(upper=span[1])
    names = [f"{place + 1}: {size(int(held))}" for place, held in enumerate(ranges["bytes"])]
    figure = go.Figure(layout=PLAIN)
    for place, stream in enumerate(ranges["stream"].unique()):
        mine = ranges["stream"] == stream
        columns = ("address", "pool", "expandable")
        figure.add_bar(
            y=[name for name, of in zip(names, mine, strict=True) if of],
            base=born[mine],
            x=(died - born)[mine],
            orientation="h",
            name=f"stream {stream}",
            marker={"color": nth_colour(place)},
            customdata=[(hex(a), plain(str(p)), e) for a, p, e in ranges.loc[mine, columns].itertuples(index=False)],
            hovertemplate="%{y} at %{customdata[0]}, pool %{customdata[1]}, expandable %{customdata[2]}<br>"
            "entries %{base} to %{x}<extra></extra>",
        )
    return figure.update_layout(
        xaxis={"title": "trace entry", "range": list(span)},
        yaxis={"autorange": "reversed", "categoryorder": "array", "categoryarray": names},
        margin={"l": 110, "t": 30},
        height=120 + 16 * len(ranges),
        showlegend=True,
        legend=ABOVE,
        barmode="overlay",
    )
