"""The events of a window of one trace, and beside them what all ranks did meanwhile."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd
from dash import html

from analyzers.run import Artefact
from analyzers.store import Options
from analyzers.traces import views
from workbench.colours import EVENT_KINDS, nth_colour
from workbench.console import clean
from workbench.present.tables.trace import latest_arrivals, longest_events
from workbench.web.components.figure import drawn
from workbench.web.components.memory import DIMMED
from workbench.web.components.text import place, table
from workbench.web.components.timing import fleet, gantt, lateness
from workbench.web.components.trace_memory import held
from workbench.web.pages import trace_critical_path
from workbench.web.served_run import ServedRun, number

WIDTH = 1200
"""Columns of a picture; what is narrower than one is joined with its neighbours."""
WINDOWS = 64
COLLECTIVES = 60
LATEST_NS = 1 << 62
COLOURS = ("kind", "stream", "phase")
REST = "not sought"
NAME = 120

Nanoseconds = tuple[int, int]


def traces(served: ServedRun) -> list[Artefact]:
    """The files that were understood, in the order of the report."""
    paths = dict.fromkeys(account.path for account in served.parts["trace"].ranks)
    known = {str(artefact.path): artefact for artefact in served.run.artefacts}
    return [known[path] for path in paths]


@dataclass(frozen=True)
class Look:
    """What colour tells of the events, and what is sought among them."""

    colour: str
    find: str
    path: bool
    """Whether the critical path is drawn as well."""


def look_of(query: dict[str, str]) -> Look:
    colour = query["colour"] if query.get("colour") in COLOURS else COLOURS[0]
    return Look(colour, query.get("find", "")[:100], query.get("path") == "1")


def drawing(served: ServedRun, at: int, look: Look, span: Nanoseconds | None) -> tuple[Any, list[Any], list[Any]]:
    """What follows the window: the events of one file, all ranks beside each other, its memory and longest events."""
    artefact = traces(served)[at]
    blocks = blocks_in(artefact, served.options, span)
    whole = (0, int((blocks["start_ns"] + blocks["dur_ns"]).max()) if len(blocks) else 1)
    told, colours = coloured(artefact, served, blocks, look)
    shown = blocks.assign(colour=told)
    if look.path:
        shown = pd.concat([trace_critical_path.row(served, artefact, span or whole, WIDTH), shown], ignore_index=True)
    listed = [*memory(served, artefact, span, whole), table(longest_events(blocks))]
    return gantt(shown, span or whole, EVENT_KINDS | colours), together(served, at, span), listed


def memory(served: ServedRun, artefact: Artefact, span: Nanoseconds | None, whole: Nanoseconds) -> list[Any]:
    """What the devices held meanwhile, where the trace tells."""
    frame = views.memory(artefact, served.options, span, WIDTH)
    if not len(frame):
        return []
    label = "Allocated and reserved memory over time"
    return [html.H2("Memory over time", id="held"), drawn("held", held(frame, span or whole), label, zooms=True)]


@lru_cache(WINDOWS)
def blocks_in(artefact: Artefact, options: Options, span: Nanoseconds | None) -> pd.DataFrame:
    """The events of a window, which readers come back to: all of a large trace take a third of a second."""
    return views.timeline(artefact, options, span, WIDTH)


def coloured(
    artefact: Artefact, served: ServedRun, blocks: pd.DataFrame, look: Look
) -> tuple[list[str], dict[str, str]]:
    """What colour tells of each block, and the colour of each such thing, the same in every window."""
    told, colours = told_by(artefact, served, blocks, look.colour)
    if not look.find:
        return told, colours
    sought = blocks["name"].str.contains(look.find, case=False, regex=False)
    kept = [title if fits else REST for title, fits in zip(told, sought, strict=True)]
    return kept, {**colours, REST: DIMMED}


def told_by(
    artefact: Artefact, served: ServedRun, blocks: pd.DataFrame, colour: str
) -> tuple[list[str], dict[str, str]]:
    """The same before anything is sought."""
    if colour == "kind":
        return blocks["kind"].tolist(), EVENT_KINDS
    known = views.lanes(artefact, served.options) if colour == "stream" else views.PHASES
    colours = {title: nth_colour(i) for i, title in enumerate(known)} | {"other": EVENT_KINDS[""]}
    if colour == "stream":
        return blocks["lane"].tolist(), colours
    return views.phases(artefact, blocks["row"].to_numpy(), served.options), colours


def together(served: ServedRun, at: int, span: Nanoseconds | None) -> list[Any]:
    """All ranks on one clock: what each does, and who comes late to which collective."""
    artefacts = traces(served)
    if len(artefacts) == 1:
        return []
    shift = shift_of(served, at)
    common = (span[0] + shift, span[1] + shift) if span else None
    over_time = views.ranks_timeline(artefacts, served.options, common)
    late = views.lateness(artefacts, served.options, COLLECTIVES)
    if common:
        late = late[(late["start_ns"] < common[1]) & (late["end_ns"] > common[0])]
    found = [
        html.H2("All ranks over time"),
        drawn("fleet", fleet(over_time), "What each rank does most of the time", zooms=True),
    ]
    if len(late):
        label = "How late each rank comes to the collectives with most waiting"
        found += [
            html.H2("Who comes late", id="waits"),
            drawn("lateness", lateness(late), label),
            table(latest_arrivals(late)),
        ]
    return found


def shift_of(served: ServedRun, at: int) -> int:
    """From the clock of a file to the common one, in ns."""
    shifts = views.axis(traces(served), served.options).set_index("path")["shift_ns"]
    return int(shifts[str(traces(served)[at].path)])


def callers(artefact: Artefact, served: ServedRun, query: dict[str, str]) -> list[Any]:
    """The event that was clicked and what encloses it, each a way to its source if it names one."""
    found = views.callers(artefact, number(query, "event", LATEST_NS, -1), served.options) if "event" in query else []
    if not found:
        return []
    return [
        html.H2(f"Callers of {clean(found[0][:NAME])}", id="callers"),
        html.Ol([html.Li(place(name)) for name in found]),
    ]
