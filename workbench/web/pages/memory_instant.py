"""The parts of the memory page about an instant: live memory as a tree, its largest owners, changes since another."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pandas as pd
import plotly.graph_objects as go
from dash import dcc, html
from dash.development.base_component import Component

from analyzers.memory import AddressContent, Device, block_map, content_at, diff, views
from analyzers.words import quantity, share, size
from workbench.console import clean
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.tables import comparison
from workbench.present.tables.memory import (
    GROUPINGS,
    NO_STACK,
    block_history,
    entry_list,
    matching_blocks,
    reserved_ranges,
)
from workbench.web.components.figure import ABOVE, drawn, plain, plain_layout, theme
from workbench.web.components.links import CellLink, Elements, choice, labelled, link, navigation, source_code, table
from workbench.web.components.memory import category_bars, memory_tree, segment_map
from workbench.web.components.tree import FRAMES, LEVELS, subtree
from workbench.web.pages.compare import bytes_waterfall
from workbench.web.query import ADDRESS, MemoryQuery, Query, address, number
from workbench.web.served_run import ServedRun

if TYPE_CHECKING:
    Row = pd.Series[int]
    """One row of a table of blocks; its cells are numbers and texts."""

_CELLS, SEGMENTS = 200, 40
_HINT = "Click a block to see its stack and history. By keyboard, follow an address in the tables."


def segment_section(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    artefact, options, number = served.snapshot(device.path), served.options, device.device
    ranges = views.segments(artefact, at.entry, options, number)
    state = views.live_blocks(artefact, at.entry, options, number)
    cells = block_map(ranges, state, _CELLS, SEGMENTS)
    return [
        html.P(_HINT, className="hint"),
        drawn("blocks", segment_map(cells, state), "Segments and the category that fills each part"),
        table(_segment_list(cells), _block_link(query)),
    ]


def _block_section(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
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
        table(block_history(history, f"History of address {where:#x}"), _block_link(query)),
    ]


def title(found: AddressContent | None, at: MemoryQuery) -> str:
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
    part = share(block["requested"], block["segment_bytes"])
    return f"{part} of the segment of {size(int(block['segment_bytes']))} at {block['segment']:#x}"


def _lifetime(born: int, died: int, device: Device, query: Query) -> Iterator[Component | str]:
    yield "from before the first entry" if born < 0 else "from entry "
    if born >= 0:
        yield link(str(born), address({**query, "entry": str(born)}))
    yield " to the end of the trace" if died >= device.entries else " to entry "
    if died < device.entries:
        yield link(str(died), address({**query, "entry": str(died)}))


def _block_link(query: Query) -> CellLink:
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


_OWNER_LEVELS = 2
_STACK_LEVELS = 40
"""The most levels of a tree of stacks with library frames: each call of a module alone adds four frames."""
_WHOLE_STACK = "whole_stack"
_MATCHES = 2000


def inspector(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    if at.block is not None:
        return [*_block_section(served, device, at, query), *_instant_section(served, device, at, query)]
    return _instant_section(served, device, at, query)


def _instant_section(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    last, alone = device.entries - 1, not device.entries
    entry = dcc.Input(id="entry", type="number", value=at.entry, min=0, max=last, debounce=True, disabled=alone)
    find = dcc.Input(id="find", type="search", value=at.find, debounce=True)
    fields = [
        html.Label(["Trace entry ", entry]),
        html.Label(["Search blocks (name, line, 0x address, >=64MiB) ", find]),
    ]
    sums = views.categories(served.snapshot(device.path), served.options, device.device, at.entry)
    marked = address({**query, "since": str(at.entry), "tab": "changes"})
    when = f"after entry {at.entry}{_remark(device, at.entry)}" if device.entries else "in the snapshot"
    return [
        html.H2(f"Live memory {when}", id="instant"),
        html.Div(category_bars(sums), id="categories"),
        html.Div(fields, className="fields"),
        *([html.P(link("Compare other instants with this one", marked))] if device.entries else []),
    ]


def _remark(device: Device, entry: int) -> str:
    failed = device.oom if device.oom and device.oom.index == entry else None
    peak = " (the peak)" if entry == device.peak_index else ""
    return peak + (f" (a request of {size(failed.requested_bytes)} failed)" if failed else "")


def changes_since(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Iterator[Component]:
    """Yield the parts of the page about the changes from the marked instant `at.since` to the selected instant."""
    if at.since is None:
        return
    artefact = served.snapshot(device.path)
    before, after = (
        diff.Instant(artefact=artefact, device=device.device, entry=entry) for entry in (at.since, at.entry)
    )
    changed = diff.between(before, after, served.options)
    rows = [(change.what, float(change.bytes)) for change in changed.categories if change.bytes]
    kept = {name: value for name, value in query.items() if name not in ("since", "tab")}
    yield html.H2(f"What changed between entries {at.since} and {at.entry}", id="changes")
    yield link("Stop comparing", address(kept))
    label = "Change of the live memory between both instants, by category"
    yield drawn("since", bytes_waterfall(rows, (changed.a_bytes, changed.b_bytes)), label)
    yield table(comparison.memory_changes(changed, "lines"))


def live_memory(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    """Return a chart of the live memory as a tree, and a table of its largest owners."""
    artefact, options, number = served.snapshot(device.path), served.options, device.device
    whole = at.by == "stack" and at.library
    tree = views.tree(artefact, options, number, by=_WHOLE_STACK if whole else at.by, entry=at.entry)
    figure = memory_tree(*subtree(tree, at.node, "bytes"), at.find, _STACK_LEVELS if whole else LEVELS)
    return [
        html.Div(_tree_controls(at, query), className="controls"),
        html.P("Click a part of the tree to zoom into it, the top bar to zoom out.", className="hint"),
        drawn("tree", figure, f"Live memory as a tree, by {at.by}", tree=True),
        *_node_path(tree, at.node),
        table(_largest_owners(tree)),
    ]


def _tree_controls(at: MemoryQuery, query: Query) -> Elements:
    # The numbers of nodes are those of one grouping.
    kept = {name: value for name, value in query.items() if name != "under"}
    groupings = [(name, f"by {name}") for name in GROUPINGS]
    shown = "1" if at.library else "0"
    return [
        choice("by", groupings, at.by, kept, "how the tree is grouped"),
        choice("library", FRAMES, shown, kept, "the frames of stacks") if at.by == "stack" else None,
    ]


def matches(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    blocks = views.search(served.snapshot(device.path), at.find, served.options, device.device, _MATCHES)
    return [table(matching_blocks(blocks, _MATCHES), _block_link(query))]


def _node_path(tree: pd.DataFrame, node: int) -> Elements:
    """Return the path to the selected node, outermost first; the frames of a stack are links to their source."""
    known = tree[tree["node"] == node]
    if not len(known):
        return []
    row = known.iloc[0]
    title = f"Selected: {size(int(row['bytes']))} in {quantity(int(row['blocks']), 'block')}, at"
    lines = [html.Li(source_code(clean(name))) for name in row["path"]]
    return [html.P(title, className="hint"), html.Ol(lines, id="path")]


def _largest_owners(tree: pd.DataFrame) -> Table:
    """Return a table of the nodes in the first `_OWNER_LEVELS` levels of a tree of live memory, in its order."""
    columns = (tree[name] for name in ("path", "bytes", "blocks"))
    rows = (
        (" / ".join(path), size(count), blocks)
        for path, count, blocks in zip(*columns, strict=True)
        if len(path) <= _OWNER_LEVELS
    )
    return table_of("Largest owners", "owner | bytes> | blocks>", rows)


# The tabs of the memory page about the allocator: address ranges over time, and the list of trace entries.
#
# An address range is memory that the allocator reserved and later released. In the address of the page, `page=N`
# selects the page of the list, and `find=` filters the list.

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
        table(reserved_ranges(ranges, device.entries), _block_link(query)),
    ]


def entry_section(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    first = _page_number(device, at, query) * _ROWS
    artefact, options = served.snapshot(device.path), served.options
    entries = views.events(artefact, options, device.device, first, _ROWS, at.find)
    return [
        _page_links(first // _ROWS, query, more=len(entries) == _ROWS),
        table(entry_list(entries), _block_link(query)),
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
    before = [(str(current - 1), "Earlier entries")] if current else []
    after = [(str(current + 1), "Later entries")] if more else []
    return choice("page", [*before, (str(current), f"Page {current + 1}"), *after], str(current), query, "a page")


def _range_chart(ranges: pd.DataFrame, span: tuple[int, int]) -> go.Figure:
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
