"""The segments of the allocator at an instant; what lies at one address: a block with its stack and life, or nothing.

`?block=0x7f..` is the address, at the instant that the page looks at.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from dash import html

from analyzers.memory import AddressContent, block_map, content_at, views
from analyzers.words import share, size
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.tables.snapshot import NO_STACK, block_history
from workbench.web.components.figure import drawn
from workbench.web.components.segment_map import block_chart
from workbench.web.components.text import Leads, address, go, labelled, navigation, place, table, told
from workbench.web.pages.memory_timeline import snapshot
from workbench.web.served_run import ADDRESS, Instant, ServedRun

Query = Mapping[str, str]
CELLS, SEGMENTS = 200, 40
HINT = "Click a block for its stack and its life; by keyboard, follow an address in the tables."


def segments(served: ServedRun, device: Any, at: Instant, query: Query) -> list[Any]:
    """The segments that hold what is alive, and what lies at the address that was clicked."""
    artefact, options, of = snapshot(served, device), served.options, device.device
    ranges = views.segments(artefact, at.entry, options, of)
    state = views.live_blocks(artefact, at.entry, options, of)
    map_of = block_map(ranges, state, CELLS, SEGMENTS)
    return [
        html.H2("Segments and what fills them"),
        html.P(HINT, className="hint"),
        drawn("blocks", block_chart(map_of, state), "Segments and what fills them"),
        *block(served, device, at, query, state, ranges),
        table(segment_list(map_of), leads(query)),
    ]


def block(
    served: ServedRun, device: Any, at: Instant, query: Query, state: pd.DataFrame, segments: pd.DataFrame
) -> list[Any]:
    """What lies at the address of the query in the `segments` at the instant, of which `state` has the blocks."""
    if at.block is None:
        return []
    found = content_at(segments, state, at.block)
    lives = views.blocks_of_address(snapshot(served, device), at.block, served.options, device.device)
    mine = state.iloc[found.block] if found and found.block >= 0 else None
    return [
        html.H2(title(found, at), id="block"),
        beside(found, state, query),
        *(about(mine, lives, device, query) if mine is not None else []),
        table(block_history(lives, f"Life of the address {at.block:#x}"), leads(query)),
    ]


def title(found: AddressContent | None, at: Instant) -> str:
    if found is None:
        return f"Nothing is reserved at {at.block:#x} after entry {at.entry}"
    what = f"Block of {size(found.bytes)}" if found.block >= 0 else f"{size(found.bytes)} of free memory"
    return f"{what} at {found.address:#x} after entry {at.entry}"


def beside(found: AddressContent | None, state: pd.DataFrame, query: Query) -> html.Nav:
    """Ways to the neighbours, and away."""
    ways = [(found.before, "block before"), (found.after, "block after")] if found else []
    links = [go(text, address({**query, "block": f"{state['address'][row]:#x}"})) for row, text in ways if row >= 0]
    kept = {name: value for name, value in query.items() if name != "block"}
    return navigation([*links, go("no more", address(kept))], "blocks beside", "choice")


def about(mine: "pd.Series[Any]", lives: pd.DataFrame, device: Any, query: Query) -> Iterator[Any]:
    """A block: how large, whose, from when to when, and the stack that asked for it, each line a way to its source."""
    its = lives[(lives["address"] == mine["address"]) & (lives["born"] == mine["born"])].iloc[0]
    yield labelled("state", f"{mine['state'].replace('_', ' ')}, {mine['requested']:,} bytes requested")
    yield labelled("category", " of ".join(filter(None, (mine["category"].replace("_", " "), mine["label"]))))
    yield labelled("place", f"stream {mine['stream']}, pool {mine['pool']}, {held_by(mine)}")
    yield told("lives", lifetime(its, device, query))
    yield html.P("freed by" if its["freed_stack"] else "allocated by", className="hint")
    yield html.Ol([html.Li(place(line)) for line in its["frames"]] or [html.Li(NO_STACK)], id="block-stack")


def held_by(mine: "pd.Series[Any]") -> str:
    part = share(mine["requested"], mine["segment_bytes"])
    return f"{part} of the segment of {size(int(mine['segment_bytes']))} at {mine['segment']:#x}"


def lifetime(its: "pd.Series[Any]", device: Any, query: Query) -> Iterator[Any]:
    """From when to when a block lives, each a way to that instant."""
    born, died = int(its["born"]), int(its["died"])
    yield "from before the first entry" if born < 0 else "from entry "
    if born >= 0:
        yield go(str(born), address({**query, "entry": str(born)}))
    yield " to the end of the trace" if died >= device.entries else " to entry "
    if died < device.entries:
        yield go(str(died), address({**query, "entry": str(died)}))


def leads(query: Query) -> Leads:
    """Of a cell that is an address: the way to what lies there."""
    return lambda cell: go(cell, address({**query, "block": cell})) if ADDRESS.fullmatch(cell) else None


def segment_list(drawn: pd.DataFrame) -> Table:
    """The segments of the map as numbers, the same from top to bottom."""
    columns = drawn[["address", "bytes", "used", "count"]].itertuples(index=False)
    rows = (
        (place, f"{at:#x}", size(int(total)), size(int(used)), share(used, total), count)
        for place, (at, total, used, count) in enumerate(columns, 1)
    )
    heads = "segment> | address | bytes> | allocated> | of it> | blocks>"
    return table_of("Segments, largest first", heads, rows, len(drawn))
