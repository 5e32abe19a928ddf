"""The timeline of the trace page: the element that the browser draws on, and the addresses of the events in it.

`?beside=M` adds the tracks of another trace on the same clock. The browser itself writes the state of the timeline
into the address: `event=N` and `of=M` name the clicked event and its file, `pick=FROM TO TRACK...` the selected range,
`pin=` and `fold=` the tracks that are pinned to the top or folded, `find=` the searched text.
"""

import gzip
import json
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dash import Dash, dcc, html
from flask import Response, request

from analyzers.columns import Column
from analyzers.run import Artefact
from analyzers.store import Options
from analyzers.traces import views
from analyzers.traces.slices import (
    KINDS,
    Event,
    Launch,
    LaunchEnd,
    Launches,
    Slices,
    event,
    launches_of,
    path_slices,
    slices,
)
from analyzers.words import duration_ns, kernel_name, quantity
from workbench.console import clean
from workbench.web.components.figure import LONGEST, theme, zoom_of
from workbench.web.components.links import Elements, labelled, link, source_code
from workbench.web.pages.trace_details import LATEST_NS, clock_shift, event_query, path_of
from workbench.web.query import Query, address, number, search_text
from workbench.web.query import window as window_in
from workbench.web.served_run import ServedRun
from workbench.web.step_window import trace_marks

_ALIGNED = 8
"""Each part of the bytes begins at a multiple of this number.

JavaScript's typed arrays require this: a float64 has 8 bytes.
"""


def event_bytes(slices: Slices) -> bytes:
    """Return the events of a timeline as bytes: length of a header (uint32), 4 zero bytes, header as JSON, columns.

    `slices` has one item per drawn block; a block is an event, or several short events. The header lists the columns in
    order, with their types. `assets/timeline_events.js` reads this format.
    """
    names = [clean(name)[:LONGEST] for name in slices.names]
    labels = [kernel_name(name) for name in names]
    columns = _column_list(slices)
    header = {
        "n": len(slices.start),
        "events": slices.events,
        "joined": slices.joined_ns,
        "columns": [(name, f"{column.dtype.kind}{column.dtype.itemsize}") for name, column in columns],
        "lines": [(clean(line.lane), line.on_device, line.depth, line.first, line.last) for line in slices.lines],
        "names": names,
        # Most names are their own label, which is then not sent.
        "labels": ["" if label == name else label for name, label in zip(names, labels, strict=True)],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    parts = [struct.pack("<II", len(text), 0), padded(text), *(padded(column.tobytes()) for _, column in columns)]
    return b"".join(parts)


def _column_list(slices: Slices) -> list[tuple[str, Column]]:
    """Return (name, values) of each column that the browser needs, in the smallest number type that fits the values.

    The column `count`, the number of events in a slice, is omitted if every slice is a single event.
    """
    # JavaScript has no whole numbers of 64 bits; a float64 holds those of 104 days in ns.
    short = slices.dur.max(initial=0) < 1 << 32
    columns = [
        ("start", slices.start.astype("<f8")),
        ("dur", slices.dur.astype("<u4" if short else "<f8")),
        ("row", slices.row.astype("<i4")),
        ("name", slices.name.astype("<u2" if len(slices.names) < 1 << 16 else "<u4")),
        ("kind", slices.kind.astype(np.uint8)),
        ("phase", slices.phase.astype(np.uint8)),
    ]
    return columns + ([("count", slices.count.astype("<u4"))] if slices.joined_ns else [])


def padded(part: bytes) -> bytes:
    """Return `part` with zeros at the end, so that its length is a multiple of `_ALIGNED`."""
    return part + bytes(-len(part) % _ALIGNED)


NAME = "events"
"""The id of the timeline."""
KEPT = 6
_STATE_CHARACTERS = 2000
STEPS = 2000
_LABEL = (
    "Timeline of the events of each stream and thread. Arrow keys move between events, Enter shows the callers of one, "
    "W and S zoom, A and D move, F fits the event, M selects its time, N goes to the next match, 0 shows everything. "
    "The strip above it shows the whole trace. "
    "The tab Longest events below has the same as a table."
)
_PALETTE_SIZE = 8
_LISTED_LAUNCHES = 8
_HEADING_CHARACTERS = 120
"""The most characters of an event's name in a heading."""


@dataclass(frozen=True)
class Chosen:
    """The clicked event: the index of its trace file, and its row in the trace."""

    file: int
    row: int


def chosen_event(served: ServedRun, file: int, query: Query) -> Chosen | None:
    """Return the event that the address names, of the trace file `file` unless `of` names another; None without one."""
    if "event" not in query:
        return None
    return Chosen(number(query, "of", len(served.traces), file), number(query, "event", LATEST_NS, -1))


def beside(served: ServedRun, file: int, query: Query) -> int | None:
    other = number(query, "beside", len(served.traces), file)
    return None if other == file else other


def timeline(served: ServedRun, file: int, query: Query, span: tuple[int, int] | None) -> html.Figure:
    """Return the element of the timeline of a trace file; `span` is the visible time range in ns, None for all."""
    config = json.dumps(_config_of(served, file, query, span), separators=(",", ":"))
    attributes: dict[str, Any] = {"data-timeline": config, "data-label": _LABEL}
    place = html.Div(id=NAME, className="timeline", **attributes)
    spoken: dict[str, Any] = {"role": "group", "aria-label": "Events over time"}
    return html.Figure([place, dcc.Store(id=zoom_of(NAME))], **spoken)


def _config_of(served: ServedRun, file: int, query: Query, span: tuple[int, int] | None) -> dict[str, object]:
    """Return the JSON object from which the browser draws the timeline: trace files, colours, steps, range and
    selection.
    """
    wanted = event_query(query)
    other = beside(served, file, query)
    sources = [source(served, file, file, wanted.colour, titled=other is not None)]
    if wanted.path:
        sources.insert(0, _path_source(file))
    if other is not None:
        sources.append(source(served, other, file, wanted.colour, titled=True))
    starts = trace_marks(served, served.traces[file]).starts()[:STEPS]
    return {
        "sources": sources,
        "file": str(file),
        "hues": {name: theme().hues[name] for name in ("page", "empty", "edge", "rule", "soft", "ink")},
        "legend": legend(wanted.colour),
        "steps": [(at, f"step {step}") for step, at in starts],
        "span": span,
        "chosen": _chosen_facts(served, file, chosen_event(served, file, query)),
        "state": {
            "find": search_text(query),
            "pick": query.get("pick", "")[:_STATE_CHARACTERS],
            "pin": query.get("pin", "")[:_STATE_CHARACTERS].split(),
            "fold": query.get("fold", "")[:_STATE_CHARACTERS].split(),
        },
    }


def source(served: ServedRun, file: int, first: int, colour: str, *, titled: bool) -> dict[str, object]:
    """Return the JSON object from which the browser draws one trace file: address of its events, title, colours, clock.

    `shift` in it are the ns to add to the file's times to get times on the clock of the trace file with index
    `first`.
    """
    rank = served.traces[file].rank
    title = f"rank {rank}" if rank is not None else f"file {file}"
    return {
        "src": f"events/{file}.bin",
        "key": str(file),
        "title": title if titled else "",
        # The head of a track has room for few letters before the name of the thread.
        "short": title.replace("rank ", "r") if titled else "",
        "shift": _shift_between(served, file, first),
        "by": colour,
        "colours": [shade for _, shade in colours(colour)],
    }


def _path_source(file: int) -> dict[str, object]:
    """Return the JSON object from which the browser draws the critical path of a trace file, as a track of its own.

    Its colours always stand for the kinds of work.
    """
    kinds = [shade for _, shade in colours("kind")]
    return {
        "src": f"path/{file}.bin",
        "key": f"path{file}",
        "title": "",
        "short": "",
        "shift": 0,
        "by": "kind",
        "colours": kinds,
    }


def _shift_between(served: ServedRun, file: int, first: int) -> int:
    return 0 if file == first else clock_shift(served, file) - clock_shift(served, first)


def colours(colour: str) -> list[tuple[str, str]]:
    """Return (meaning, colour) of each value of the column that the colours stand for: kind, phase or stream."""
    if colour == "kind":
        return [(kind or "host", theme().kinds[kind]) for kind in KINDS]
    if colour == "phase":
        return [(name, theme().kinds[""] if name == "other" else theme().nth(i)) for i, name in enumerate(views.PHASES)]
    return [("", theme().nth(i)) for i in range(_PALETTE_SIZE)]


def legend(colour: str) -> list[tuple[str, str]]:
    """Return the entries of the legend, in the order of the column's values; the browser shows those that occur.

    A stream or thread needs none, as its name stands beside its track.
    """
    return colours(colour) if colour != "stream" else []


def _chosen_facts(served: ServedRun, file: int, chosen: Chosen | None) -> dict[str, object] | None:
    """Return where the browser draws the clicked event: its row, track (`lane`), depth, start and duration in ns.

    `launches` are the pairs of a call and the work that it launched, between which the browser draws arrows. Starts are
    on the clock of the trace file with index `file`. Return None if no event was clicked or it does not exist.
    """
    found = facts(served, chosen) if chosen else None
    if chosen is None or found is None:
        return None
    shift = _shift_between(served, chosen.file, file)
    found_launches = launches_from(served.traces[chosen.file], chosen.row, served.options).launches
    return {
        "file": str(chosen.file),
        "row": chosen.row,
        **place_of(found, shift),
        "dur": found.dur_ns,
        "launches": [[place_of(one.call, shift), place_of(one.work, shift)] for one in found_launches],
    }


def place_of(found: Event | LaunchEnd, shift: int) -> dict[str, object]:
    return {"start": found.start_ns + shift, "lane": clean(found.lane), "depth": found.depth}


def facts(served: ServedRun, chosen: Chosen) -> Event | None:
    return event_in(served.traces[chosen.file], chosen.row, served.options)


# Both the timeline and the text beside it ask for what was clicked, and either search goes through the whole trace.
@lru_cache(KEPT)
def event_in(artefact: Artefact, row: int, options: Options) -> Event | None:
    return event(artefact, row, options)


@lru_cache(KEPT)
def launches_from(artefact: Artefact, row: int, options: Options) -> Launches:
    return launches_of(artefact, row, options)


def install_timeline(app: Dash, served: ServedRun) -> None:
    """Register the addresses from which the browser loads events."""

    @app.server.get("/events/<int:file>.bin")  # type: ignore[untyped-decorator]  # Dash types its server as Any
    def events(file: int) -> Response:
        if file >= len(served.traces):
            return Response("no such trace", 404)
        window = window_in(dict(request.args), LATEST_NS)
        return binary(packed_events(served.traces[file], served.options, window))

    @app.server.get("/path/<int:file>.bin")  # type: ignore[untyped-decorator]
    def path(file: int) -> Response:
        if file >= len(served.traces):
            return Response("no such trace", 404)
        return binary(packed(event_bytes(path_slices(path_of(served, served.traces[file])))))


@lru_cache(KEPT)
def packed_events(artefact: Artefact, options: Options, window: tuple[int, int] | None) -> bytes:
    return packed(event_bytes(slices(artefact, options, window)))


def packed(content: bytes) -> bytes:
    """Return `content` compressed quickly: a third of the bytes to send through ssh, in 0.2 s per million events."""
    return gzip.compress(content, compresslevel=1, mtime=0)


def binary(content: bytes) -> Response:
    """Return a response with compressed bytes that the browser caches, but checks with the server before each use."""
    answer = Response(content, content_type="application/octet-stream")
    answer.vary.add("Accept-Encoding")
    if request.accept_encodings["gzip"]:
        answer.content_encoding = "gzip"
    else:
        answer.set_data(gzip.decompress(content))
    answer.headers["Cache-Control"] = "private, no-cache"
    answer.add_etag()
    answer.make_conditional(request)
    return answer


def selected_event(served: ServedRun, file: int, chosen: Chosen, query: Query) -> Elements:
    """Return the clicked event with its times, the events that enclose it as a list, and what it launched.

    `file` is the index of the trace file whose clock the page has.

    Each item links to its source line if it names one. The list is empty if there is no such event.
    """
    found, artefact = facts(served, chosen), served.traces[chosen.file]
    if found is None:
        return []
    names = views.callers(artefact, chosen.row, served.options)
    inside = f", {duration_ns(found.self_ns)} outside the events in it" if found.self_ns < found.dur_ns else ""
    whose = "" if artefact.rank is None else f"rank {artefact.rank}, "
    kind = ", ".join(word for word in (found.kind or "host", clean(found.category)) if word)
    return [
        html.H2(clean(names[0][:_HEADING_CHARACTERS]), id="event"),
        labelled("Duration", [f"{duration_ns(found.dur_ns)}{inside}"]),
        labelled("Start", [duration_ns(found.start_ns)]),
        labelled("Track", [f"{whose}{clean(found.lane)}"]),
        labelled("Kind", [kind]),
        *_launch_list(served, file, chosen, query),
        html.H2("The event and its callers", id="callers"),
        html.Ol([html.Li(source_code(name)) for name in names]),
    ]


def _launch_list(served: ServedRun, file: int, chosen: Chosen, query: Query) -> Elements:
    """Return the call that launched the clicked work of a device, or the first work that the clicked event launched.

    Each links to the page with this event selected. The list is empty if the trace links none.
    """
    found = launches_from(served.traces[chosen.file], chosen.row, served.options)
    if not found.launches:
        return []
    first, shift = found.launches[0], _shift_between(served, chosen.file, file)

    def selecting(launch: Launch, row: int) -> str:
        return address(_query_for(query, launch, row, shift))

    def timing(launch: Launch) -> str:
        return f", {duration_ns(launch.work.dur_ns)}, begins {duration_ns(launch.wait_ns)} after its call"

    if first.work.row == chosen.row:
        to_call = link(clean(first.call.name), selecting(first, first.call.row), fixed=True)
        return [labelled("Launch", [to_call, f", {duration_ns(first.wait_ns)} before it began"])]
    items = [
        html.Li(
            [link(clean(one.work.name[:_HEADING_CHARACTERS]), selecting(one, one.work.row), fixed=True), timing(one)]
        )
        for one in found.launches[:_LISTED_LAUNCHES]
    ]
    left = found.count - len(items)
    return [
        html.H2(f"Launches {quantity(found.count, 'event')} on the device", id="launches"),
        html.Ol(items),
        *([html.P(f"and {left} more", className="hint")] if left else []),
    ]


def _query_for(query: Query, launch: Launch, row: int, shift: int) -> Query:
    """Return the query of the page that selects the event in `row`; its time range holds the call and its work.

    `shift` is the number of ns to add to times of the trace file to get times of the page.
    """
    low, high = launch.call.start_ns + shift, launch.work.start_ns + launch.work.dur_ns + shift
    changed = {**query, "event": str(row)}
    span = window_in(query, LATEST_NS)
    if span is None or (span[0] <= low and high <= span[1]):
        return changed
    changed.pop("steps", None)
    room = (high - low) // 4 + 1
    return {**changed, "from": str(max(0, low - room)), "to": str(high + room)}
