"""The parts of the memory page about an instant: live memory as a tree, its largest owners, changes since another."""

from collections.abc import Iterator

import pandas as pd
from dash import dcc, html
from dash.development.base_component import Component

from analyzers.memory import diff, views
from analyzers.memory.model import Device
from analyzers.words import quantity, size
from workbench.console import clean
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.tables import comparison
from workbench.present.tables.snapshot import matching_blocks
from workbench.web.components.comparison import bytes_waterfall
from workbench.web.components.figure import drawn
from workbench.web.components.links import Elements, choice, link, source_code, table
from workbench.web.components.memory import category_bars, memory_tree
from workbench.web.components.tree import FRAMES, LEVELS, subtree
from workbench.web.pages.memory_segments import block_link, block_section
from workbench.web.query import GROUPINGS, MemoryQuery, Query, address
from workbench.web.served_run import ServedRun

_OWNER_LEVELS = 2
_STACK_LEVELS = 40
"""The most levels of a tree of stacks with library frames: each call of a module alone adds four frames."""
_WHOLE_STACK = "whole_stack"
_MATCHES = 2000


def inspector(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    """Return a description of the selected instant, after that of the selected block if there is one."""
    if at.block is not None:
        return [*block_section(served, device, at, query), *_instant_section(served, device, at, query)]
    return _instant_section(served, device, at, query)


def _instant_section(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    """Return the live memory at an instant by category, and input fields that select an instant and search blocks."""
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
    """Return a remark in parentheses if the instant is the peak or a failed allocation; otherwise an empty text."""
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
    """Return the controls of the tree: how it is grouped and, by stack, whether frames of libraries are shown."""
    # The numbers of nodes are those of one grouping.
    kept = {name: value for name, value in query.items() if name != "under"}
    groupings = [(name, f"by {name}") for name in GROUPINGS]
    shown = "1" if at.library else "0"
    return [
        choice("by", groupings, at.by, kept, "how the tree is grouped"),
        choice("library", FRAMES, shown, kept, "the frames of stacks") if at.by == "stack" else None,
    ]


def matches(served: ServedRun, device: Device, at: MemoryQuery, query: Query) -> Elements:
    """Return a table of the blocks of memory that match the searched text."""
    blocks = views.search(served.snapshot(device.path), at.find, served.options, device.device, _MATCHES)
    return [table(matching_blocks(blocks, _MATCHES), block_link(query))]


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
