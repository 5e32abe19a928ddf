"""What is alive at an instant: as a tree, by its largest holders, and beside another instant."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from dash import dcc, html

from analyzers.memory import diff, views
from analyzers.words import size
from workbench.console import clean
from workbench.present.table import Table
from workbench.present.table import table as table_of
from workbench.present.tables import comparison
from workbench.present.tables.snapshot import live_categories, matching_blocks
from workbench.web.components.comparison import of_bytes
from workbench.web.components.figure import drawn
from workbench.web.components.memory import category_bars, icicle
from workbench.web.components.text import address, choice, go, place, table
from workbench.web.pages.memory_segments import leads
from workbench.web.pages.memory_timeline import snapshot
from workbench.web.served_run import GROUPINGS, WHOLE, Instant, ServedRun

LEVELS = 2
NODES = 500
FOUND = 40


def around(device: Any, at: Instant, query: Mapping[str, str]) -> list[Any]:
    """The instant, and the ways to another that need no mouse."""
    entry = dcc.Input(id="entry", type="number", value=at.entry, min=0, max=device.entries - 1, debounce=True)
    find = dcc.Input(id="find", type="search", value=at.find, debounce=True)
    return [
        html.H2(f"Alive after entry {at.entry}{remark(device, at.entry)}", id="instant"),
        html.Div(
            [html.Label(["at entry ", entry]), html.Label(["find a name, line, 0x address or >=64MiB ", find])],
            className="fields",
        ),
        go("compare other instants with this one", address({**query, "since": str(at.entry)})),
    ]


def remark(device: Any, entry: int) -> str:
    """What is special about an instant."""
    failed = device.oom if device.oom and device.oom.index == entry else None
    peak = " (the peak)" if entry == device.peak_index else ""
    return peak + (f" ({size(failed.requested_bytes)} more were asked for, which failed)" if failed else "")


def since(served: ServedRun, device: Any, at: Instant, query: Mapping[str, str]) -> Iterator[Any]:
    """What changed from an instant that was marked to the one that is looked at."""
    if at.since is None:
        return
    artefact, of = snapshot(served, device), device.device
    before, after = (diff.Instant(artefact=artefact, device=of, entry=entry) for entry in (at.since, at.entry))
    changed = diff.between(before, after, served.options)
    rows = [(one.what, one.bytes) for one in changed.categories if one.bytes]
    kept = {name: value for name, value in query.items() if name != "since"}
    yield html.H2(f"What changed between entries {at.since} and {at.entry}", id="changes")
    yield go("no more", address(kept))
    label = "From the bytes at the first instant to those at the second, by category"
    yield drawn("since", of_bytes(rows, (changed.a_bytes, changed.b_bytes)), label)
    yield table(comparison.memory_changes(changed, "lines"))


def alive(served: ServedRun, device: Any, at: Instant, query: dict[str, str]) -> list[Any]:
    """The tree of what is alive, with the largest of its nodes as a table."""
    artefact, options, of = snapshot(served, device), served.options, device.device
    tree = views.tree(artefact, options, of, by=at.by, entry=at.entry)
    sums = views.categories(artefact, options, of, at.entry)
    return [
        drawn("categories", category_bars(sums), "Bytes alive by category"),
        table(live_categories(sums)),
        choice("by", [(name, f"by {name}") for name in GROUPINGS], at.by, query),
        drawn("tree", icicle(*below(tree, at.under), at.find), f"What is alive, by {at.by}"),
        *path_of(tree, at.under),
        table(holders(tree)),
        *(
            [table(matching_blocks(views.search(artefact, at.find, options, of, FOUND), FOUND), leads(query))]
            if at.find
            else []
        ),
    ]


def path_of(tree: pd.DataFrame, under: int) -> list[Any]:
    """What was clicked on, from the outermost to it: of a stack its frames, each a way to its source."""
    known = tree[tree["node"] == under]
    if not len(known):
        return []
    node = known.iloc[0]
    title = f"{size(int(node['bytes']))} in {node['blocks']} blocks, reached by"
    return [html.P(title, className="hint"), html.Ol([html.Li(place(clean(name))) for name in node["path"]], id="path")]


def below(tree: pd.DataFrame, under: int) -> tuple[pd.DataFrame, int]:
    """The largest nodes of the tree at and below `under`, at most `NODES`, and where a click on the first leads.

    A parent holds at least what a child holds and comes before it, so none is taken without its parents.
    """
    if under not in set(tree["node"]):
        return tree.nlargest(NODES, "bytes", keep="first"), WHOLE
    parents = dict(zip(tree["node"], tree["parent"], strict=True))
    inside = {under}
    for node, parent in parents.items():
        if parent in inside:
            inside.add(node)
    kept = tree[tree["node"].isin(inside)].nlargest(NODES, "bytes", keep="first")
    return kept.assign(parent=kept["parent"].where(kept["node"] != under, WHOLE)), parents[under]


def holders(tree: pd.DataFrame) -> Table:
    """The first levels of a tree, largest first."""
    columns = (tree[name] for name in ("path", "bytes", "blocks"))
    rows = (
        (" / ".join(path), size(held), blocks)
        for path, held, blocks in zip(*columns, strict=True)
        if len(path) <= LEVELS
    )
    return table_of("Largest holders", "what | bytes> | blocks>", rows)
