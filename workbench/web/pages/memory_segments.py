"""The parts of the memory page about the allocator's segments, and about one memory address.

`block=0x7f..` in the address of the page selects the memory address; a block or free memory is found there.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
from dash import html
from dash.development.base_component import Component

from analyzers.memory import AddressContent, Device, block_map, content_at, views
from analyzers.words import share, size
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.tables.snapshot import NO_STACK, block_history
from workbench.web.components.figure import drawn
from workbench.web.components.links import CellLink, Elements, labelled, link, navigation, source_code, table
from workbench.web.components.segment_map import segment_map
from workbench.web.query import ADDRESS, MemoryQuery, Query, address
from workbench.web.served_run import ServedRun

if TYPE_CHECKING:
    Row = pd.Series[int]
    """One row of a table of blocks; its cells are numbers and texts."""

_CELLS, SEGMENTS = 200, 40
_HINT = "Click a block to see its stack and history. By keyboard, follow an address in the tables."


def segment_section(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    """Return a map and a table of the segments that contain live memory."""
    artefact, options, number = served.snapshot(device.path), served.options, device.device
    ranges = views.segments(artefact, at.entry, options, number)
    state = views.live_blocks(artefact, at.entry, options, number)
    cells = block_map(ranges, state, _CELLS, SEGMENTS)
    return [
        html.P(_HINT, className="hint"),
        drawn("blocks", segment_map(cells, state), "Segments and the category that fills each part"),
        table(_segment_list(cells), block_link(query)),
    ]


def block_section(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    """Return a description of the memory at the address `at.block`: a block with its stack, or free memory."""
    artefact, options, number = served.snapshot(device.path), served.options, device.device
    state = views.live_blocks(artefact, at.entry, options, number)
    where = at.block or 0
    found = content_at(views.segments(artefact, at.entry, options, number), state, where)
    history = views.blocks_of_address(artefact, where, options, number)
    row = found.block if found and found.block >= 0 else None
    return [
        html.H2(title(found, at), id="block"),
        neighbours(found, state, query),
        *(_block_facts(state.iloc[row], history, device, query) if row is not None else []),
        table(block_history(history, f"History of address {where:#x}"), block_link(query)),
    ]


def title(found: AddressContent | None, at: MemoryQuery) -> str:
    """Return the heading for a memory address: its block or free memory, and the trace entry."""
    if found is None:
        return f"No segment contains {at.block or 0:#x} after entry {at.entry}"
    what = f"Block of {size(found.bytes)}" if found.block >= 0 else f"{size(found.bytes)} of free memory"
    return f"{what} at {found.address:#x} after entry {at.entry}"


def neighbours(found: AddressContent | None, state: pd.DataFrame, query: Query) -> html.Nav:
    """Return links to the blocks at the next lower and next higher address, and a link that closes the section."""
    rows = [(found.before, "Block before"), (found.after, "Block after")] if found else []
    links = [link(text, address({**query, "block": f"{state['address'][row]:#x}"})) for row, text in rows if row >= 0]
    kept = {name: value for name, value in query.items() if name != "block"}
    return navigation([*links, link("Close", address(kept))], "neighbouring blocks", "choice")


def _block_facts(block: "Row", history: pd.DataFrame, device: Device, query: Query) -> Iterator[Component]:
    """Yield state, category, location and lifetime of a block, and its stack with links to the source."""
    same = (history["address"] == block["address"]) & (history["born"] == block["born"])
    life = history[same].iloc[0]
    state, category = str(block["state"]).replace("_", " "), str(block["category"])
    yield labelled("State", [f"{state}, {block['requested']:,} bytes requested"])
    yield labelled("Category", [" of ".join(filter(None, (category, str(block["label"] or ""))))])
    yield labelled("Location", [f"stream {block['stream']}, pool {block['pool']}, {_share_of_segment(block)}"])
    yield labelled("Lifetime", _lifetime(int(life["born"]), int(life["died"]), device, query))
    yield html.P("Freed by" if life["freed_stack"] else "Allocated by", className="hint")
    yield html.Ol([html.Li(source_code(line)) for line in life["frames"]] or [html.Li(NO_STACK)], id="block-stack")


def _share_of_segment(block: "Row") -> str:
    """Return the share of its segment that a block takes, as text."""
    part = share(block["requested"], block["segment_bytes"])
    return f"{part} of the segment of {size(int(block['segment_bytes']))} at {block['segment']:#x}"


def _lifetime(born: int, died: int, device: Device, query: Query) -> Iterator[Component | str]:
    """Yield a text with the trace entries at which a block was allocated and freed, each a link to that instant."""
    yield "from before the first entry" if born < 0 else "from entry "
    if born >= 0:
        yield link(str(born), address({**query, "entry": str(born)}))
    yield " to the end of the trace" if died >= device.entries else " to entry "
    if died < device.entries:
        yield link(str(died), address({**query, "entry": str(died)}))


def block_link(query: Query) -> CellLink:
    """Return a function that makes a link from a table cell with a memory address; it leads to the block there."""
    return lambda cell: link(cell, address({**query, "block": cell})) if ADDRESS.fullmatch(cell) else None


def _segment_list(cells: pd.DataFrame) -> Table:
    """Return a table of the segments in `cells`, which holds the rows of the segment map; the order is the same."""
    columns = cells[["address", "bytes", "used", "count"]].itertuples(index=False)
    rows = (
        (number, f"{at:#x}", size(int(total)), size(int(used)), share(used, total), count)
        for number, (at, total, used, count) in enumerate(columns, 1)
    )
    heads = "segment> | address | bytes> | allocated> | share> | blocks>"
    return table_of("Segments, largest first", heads, rows, len(cells))
