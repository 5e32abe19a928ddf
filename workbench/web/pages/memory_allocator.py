"""The tabs of the memory page about the allocator: address ranges over time, and the list of trace entries.

An address range is memory that the allocator reserved and later released. In the address of the page, `page=N` selects
the page of the list, and `find=` filters the list.
"""

import pandas as pd
import plotly.graph_objects as go
from dash import html
from dash.development.base_component import Component

from analyzers.memory import views
from analyzers.memory.model import Device
from analyzers.words import size
from workbench.present.tables.snapshot import entry_list, reserved_ranges
from workbench.web.components.figure import ABOVE, drawn, plain, plain_layout
from workbench.web.components.links import Elements, choice, table
from workbench.web.pages.memory_segments import block_link
from workbench.web.query import MemoryQuery, Query, number
from workbench.web.served_run import ServedRun
from workbench.web.theme import theme

_RANGES, _ROWS = 40, 500
_MADE_UP = " (a CPU has no segments: these are computed as a GPU's allocator would reserve them)"


def range_section(served: ServedRun, device: Device, query: Query, span: tuple[int, int] | None) -> Elements:
    """Return a chart and a table of the largest address ranges that were reserved within `span`, a range of entries."""
    ranges = views.reserved_ranges(served.snapshot(device.path), served.options, device.device, span, _RANGES)
    made_up = _MADE_UP if device.fragmentation.made_up_segments else ""
    return [
        html.P(
            f"Each bar is an address range, from the entry that reserved it to the one that returned it{made_up}.",
            className="hint",
        ),
        drawn("cached", _range_chart(ranges, span or (0, device.entries)), "Reserved address ranges over time"),
        table(reserved_ranges(ranges, device.entries), block_link(query)),
    ]


def entry_section(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    """Return one page of the list of trace entries, with links to the pages before and after it."""
    first = _page_number(device, at, query) * _ROWS
    artefact, options = served.snapshot(device.path), served.options
    entries = views.events(artefact, options, device.device, first, _ROWS, at.find)
    return [
        _page_links(first // _ROWS, query, more=len(entries) == _ROWS),
        table(entry_list(entries), block_link(query)),
    ]


def _page_number(device: Device, at: MemoryQuery, query: Query) -> int:
    """Return the number of the page of trace entries to show.

    This is the number in the page's address. Without one, the page with the selected instant is shown; the results of a
    search start at page 0.
    """
    # Matches are numbered among themselves: the page of the instant says nothing about them.
    current = 0 if at.find else max(at.entry, 0) // _ROWS
    return number(query, "page", device.entries // _ROWS + 1, current)


def _page_links(current: int, query: Query, *, more: bool) -> Component | None:
    """Return links to the previous and the next page of trace entries; None if there is no other page."""
    before = [(str(current - 1), "Earlier entries")] if current else []
    after = [(str(current + 1), "Later entries")] if more else []
    return choice("page", [*before, (str(current), f"Page {current + 1}"), *after], str(current), query, "a page")


def _range_chart(ranges: pd.DataFrame, span: tuple[int, int]) -> go.Figure:
    """Return a chart with a bar for each address range, from reservation to release; the colour shows the stream."""
    born, died = ranges["born"].clip(lower=span[0]), ranges["died"].clip(upper=span[1])
    names = [f"{position}: {size(int(count))}" for position, count in enumerate(ranges["bytes"], 1)]
    figure = go.Figure(layout=plain_layout())
    for position, stream in enumerate(ranges["stream"].unique()):
        mine = ranges["stream"] == stream
        # One trace for each stream, as Plotly gives a legend entry to traces, not to bars.
        columns = ["address", "pool", "expandable"]
        figure.add_bar(
            y=[name for name, of_stream in zip(names, mine, strict=True) if of_stream],
            base=born[mine],
            x=(died - born)[mine],
            orientation="h",
            name=f"stream {stream}",
            marker={"color": theme().nth(position)},
            customdata=[
                (hex(a), plain(str(p)), ", expandable" if e else "")
                for a, p, e in ranges.loc[mine, columns].itertuples(index=False)
            ],
            hovertemplate="%{y} at %{customdata[0]}, pool %{customdata[1]}%{customdata[2]}<br>"
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
