"""Serve the live page of a job, and the dashboard of the files that the job has recorded so far."""

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import pandas as pd
from dash import Dash, Input, Output, State, dcc, html, no_update
from dash.development.base_component import Component

from analyzers.errors import WorkbenchError
from analyzers.run import discover
from analyzers.steps.live import FinishedStep, JobState, JobStatus
from analyzers.store import Options
from analyzers.words import duration, percent, quantity
from workbench.axes import Span
from workbench.colours import LIVE_STATE_SIGNS, SEVERITY_SIGNS
from workbench.console import clean, note
from workbench.watch.follow import ANALYSING
from workbench.watch.watched_job import JobWatcher, RankRow, WatchedJob, alerts, progress, rank_row, troubled_first
from workbench.web.app import finish, new_app
from workbench.web.components.figure import byte_axis, drawn, zoom_of
from workbench.web.components.links import part_list, verdict
from workbench.web.components.step_charts import (
    SmallChart,
    duration_axis,
    failed_step,
    phase_colour,
    small_charts,
    thinned,
)
from workbench.web.http_server import AccessControl, Door, Uploads
from workbench.web.page import ALL, zoomed_range
from workbench.web.server import Place, dashboard, serve_app

_EVERY_MS = 1000
_YOUNG_S = 0.4
"""The seconds for which all browsers get the same state of the job, so that it is not read for each of them."""
_RANKS = 64
"""The most ranks in the table; those with problems come first."""
_SMALLEST_BAR = 0.005
"""The share of the time from which on a phase has a bar of its own; smaller ones are shown as "other"."""
_LABEL = "Memory, step time and loss of the last steps"
_SIGN_OF_STATUS = {
    JobStatus.FAILED: "error",
    JobStatus.LOSING_RANKS: "error",
    JobStatus.STALLED: "warning",
    JobStatus.UNKNOWN: "warning",
}
PARTS = (
    ("live-status", "children"),
    ("live-alerts", "children"),
    ("live-steps", "figure"),
    ("live-charts", "hidden"),
    ("live-phases", "children"),
    ("live-ranks", "children"),
)
"""The parts of the page that are updated, as (id of the component, attribute)."""
COLUMNS = ("rank", "state", "step", "phase", "for", "memory", "room left", "full at step")


class LiveJob:
    """A watched job whose state can be read by several requests at the same time."""

    def __init__(self, watcher: JobWatcher) -> None:
        self.folder = watcher.folder
        self._watcher, self._lock = watcher, Lock()
        self._job: WatchedJob | None = None
        self._looked_s = 0.0

    def now(self) -> WatchedJob:
        """Return the state of the job, at most `_YOUNG_S` seconds old."""
        # Requests come on several threads, and two looks at once would change the same state of the watcher.
        with self._lock:
            if self._job is None or time.monotonic() - self._looked_s > _YOUNG_S:
                self._job, self._looked_s = self._watcher.look(), time.monotonic()
            return self._job

    def version(self) -> object:
        """Return a value that changes when the job's status or step changes, or when there are new recorded files."""
        now = self.now().now
        return now.status, now.step, now.evidence


def layout(job: LiveJob) -> html.Div:
    """Return the page with empty parts; the callback of `install` fills them."""
    spoken: dict[str, Any] = {"role": "status", "aria-live": "polite"}
    title = html.H1([html.Span("workbench", className="brand"), html.Span(clean(job.folder))], title=clean(job.folder))
    recorded = html.A("Report on what is recorded", href="open/recorded/", className="recorded")
    parts: list[Component] = [
        html.Div(id="live-status"),
        # Not the status: a screen reader would read it out every second.
        html.Div(id="live-alerts", **spoken),
        html.Div(drawn("live-steps", {}, _LABEL, zooms=True), id="live-charts", hidden=True),
        html.Div(id="live-phases"),
        html.Div(id="live-ranks"),
    ]
    return html.Div(
        [
            dcc.Interval(id="tick", interval=_EVERY_MS),
            dcc.Store(id="shown-parts"),
            dcc.Store(id="themed"),
            # The script of all pages stores the address here when the theme changes.
            dcc.Store(id="here"),
            html.Header([title, recorded, html.Button("Light / dark", id="theme")]),
            html.P(id="said", **spoken),
            html.Main(parts, id="page", tabIndex=0),
        ],
        className="shell live",
    )


def install(app: Dash, job: LiveJob) -> None:
    """Register the callback that reads the job every second and replaces the parts of the page that have changed."""

    @app.callback(
        *(Output(name, attribute) for name, attribute in PARTS),
        Output("shown-parts", "data"),
        Input("tick", "n_intervals"),
        Input("themed", "data"),
        State("shown-parts", "data"),
        State(zoom_of("live-steps"), "data"),
    )
    def renew(_ticks: object, themed: object, shown: object, zoom: object) -> object:
        known = shown if isinstance(shown, list) and len(shown) == len(PARTS) else [None] * len(PARTS)
        parts = _page_parts(job.now(), _shown_steps(zoom))
        # Charts have the colours of the theme, so that they are drawn again when it changes.
        keys = [f"{themed} {key}" for key, _ in parts]
        changed = [key != before for key, before in zip(keys, known, strict=True)]
        if not any(changed):
            return (no_update,) * (len(PARTS) + 1)
        new = [part if is_new else no_update for (_, part), is_new in zip(parts, changed, strict=True)]
        return (*new, keys)


def _page_parts(job: WatchedJob, zoomed: Span | None) -> list[tuple[str, object]]:
    """Return (key, content) for each of `PARTS`; the key is a text that changes when the content changes.

    `zoomed` is the range of steps that the charts show; None means all steps.
    """
    now = job.now
    last = now.recent[-1] if now.recent else None
    rows = [rank_row(rank) for rank in troubled_first(now.ranks)]
    attention, report = [*alerts(job)], job.report
    failed = failed_step(report) if report else None
    # A line needs two points.
    charts = [chart for chart in _step_charts(now.recent) if len(chart.by_step) > 1]
    return [
        (f"{now.status} {progress(now)}", [status(now)]),
        (f"{attention} {job.analysing} {report.verdict.sentence if report else ''}", news(job)),
        (f"{last} {zoomed} {failed}", small_charts(charts, failed, zoomed) if charts else no_update),
        (f"{not charts}", not charts),
        # Rounded, because the share of the recorders changes a little with every step.
        (f"{now.phases} {now.recorders:.2f}", phases(now)),
        (f"{rows}", _ranks_table(rows)),
    ]


def status(now: JobState) -> html.Section:
    """Return the part of the page with the job's status, step, loss, speed and time left."""
    sign = html.Span(LIVE_STATE_SIGNS.get(now.status, "?"), className=f"sign {_SIGN_OF_STATUS.get(now.status, '')}")
    facts = [html.Span(clean(fact)) for fact in progress(now)] if now.recent or now.ranks else []
    waiting = [] if facts else [html.Span("the job has not written a step yet")]
    return html.Section([html.H2([sign, str(now.status)]), html.P([*facts, *waiting], className="facts")])


def news(job: WatchedJob) -> list[Component]:
    """Return the part of the page with what needs attention, and the verdict as soon as it is known."""
    lines: list[Component] = [
        html.P([html.Span(SEVERITY_SIGNS[severity], className=f"sign {severity}"), clean(text)], className="alert")
        for severity, text in alerts(job)
    ]
    waiting = [html.P(ANALYSING, className="hint")] if job.analysing else []
    return [*lines, *waiting, *([verdict(job.report)] if job.report else [])]


def _shown_steps(zoom: object) -> Span | None:
    steps = zoomed_range(zoom)
    return None if steps == ALL else steps


def _step_charts(recent: Sequence[FinishedStep]) -> list[SmallChart]:
    table = pd.DataFrame(
        [(step.step, float(step.memory_bytes), step.dur_s, step.loss) for step in recent],
        columns=["step", "memory", "time", "loss"],
    ).set_index("step")
    memory, times, losses = (thinned(table[[name]].dropna().astype(float))[name] for name in table.columns)
    return [
        SmallChart("peak memory of the fullest rank", memory, byte_axis(memory.max())),
        SmallChart("step time of the slowest rank", times, duration_axis(times.max())),
        SmallChart("loss", losses, {}),
    ]


def phases(now: JobState) -> list[Component]:
    """Return the time and share of each phase in the last steps, and a folded text on the time of our recorders."""
    if not now.phases:
        return []
    shares = {name: share for name, share in now.phases.items() if share >= _SMALLEST_BAR}
    # A sum of floats may exceed 1 by a rounding error.
    shares["other"] = shares.get("other", 0.0) + max(0.0, 1 - sum(shares.values()))
    colours = {name: phase_colour(name) for name in shares}
    times = {name: share * (now.step_s or 0.0) for name, share in shares.items()}
    return [
        html.H2("Phases of the last steps"),
        *part_list(times, colours, duration),
        *([recorders(now.recorders)] if now.recorders else []),
    ]


def recorders(taken: float) -> html.Details:
    """Return a folded text on the time of our recorders, which is not part of any phase.

    `taken` is this time as a fraction of the whole time.
    """
    text = f"Our recorders took {percent(taken)} of the whole time; the phases are shares of the rest."
    return html.Details([html.Summary("Recorders"), html.P(text)])


def _ranks_table(rows: Sequence[RankRow]) -> list[Component]:
    """Return a table with a row for each rank; ranks with problems come first.

    A column in which no rank has a value is left out.
    """
    if not rows:
        return []
    filled = [number for number in range(len(COLUMNS)) if any(row[number] for row in rows)]
    head = html.Thead(html.Tr([html.Th(COLUMNS[number]) for number in filled]))
    lines = [html.Tr([html.Td(clean(row[number])) for number in filled], key=row.rank) for row in rows[:_RANKS]]
    body = html.Tbody(lines)
    hidden = len(rows) - _RANKS
    rest = [html.P(f"and {quantity(hidden, 'more rank')}", className="hint")] if hidden > 0 else []
    spoken: dict[str, Any] = {"role": "region", "aria-label": "Ranks"}
    # In a narrow window the table scrolls to the side, not the page.
    place = html.Div(html.Table([head, body], className="ranks"), className="wide", tabIndex=0, **spoken)
    return [html.H2("Ranks"), place, *rest]


RECORDED = "recorded"
"""The name of the dashboard of the recorded files in its address, `open/recorded/`."""


def serve_live(folder: Path, place: Place) -> None:
    """Serve the live page of the job that writes to `folder` until the user interrupts it.

    The folder need not exist yet.
    """
    if not folder.is_dir():
        note(f"waiting for {folder}, which does not exist yet")
    serve_app(lambda sets, door, place: assembled(folder, sets, door, private=place.is_private), folder, "", place)


def assembled(folder: Path, sets: Path, door: Door, *, private: bool = True) -> AccessControl:
    """Return the WSGI application with the live page, and with dashboards of the recorded and of dropped files.

    Files that a user drops onto the page are stored in `sets`. `door` has the access token and the address prefix.
    """
    job = LiveJob(JobWatcher(folder))
    app = new_app(f"{folder} (live)", door.prefix)
    app.layout = layout(job)
    install(app, job)
    finish(app)
    recorded = Recorded(lambda: dashboard(discover(folder), f"{door.prefix}open/{RECORDED}/", Options()), job.version)
    return AccessControl(Uploads(app.server, sets, Options(), {RECORDED: recorded}, door.prefix), door, private)


class Recorded:
    """A WSGI application that `make` creates at the first page request, and again when there are new recorded files.

    The function `version` returns a value that changes when the job has recorded more.
    """

    def __init__(self, make: Callable[[], WSGIApplication], version: Callable[[], object]) -> None:
        self._make, self._version, self._lock = make, version, Lock()
        self._made: WSGIApplication | None = None
        self._made_of: object = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a WSGI request; if no recorded file can be analysed yet, say so with status 404."""
        is_page = environ.get("PATH_INFO", "/") == "/"
        try:
            with self._lock:
                # Only a page renews the dashboard: its many further requests should see the same recorded data.
                made = self._current() if is_page or self._made is None else self._made
        except WorkbenchError as error:
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{error.message}\n{error.hint}\n".encode()]
        return made(environ, start_response)

    def _current(self) -> WSGIApplication:
        # Read before the dashboard is made: what is recorded meanwhile then counts as newer.
        version = self._version()
        if self._made is None or version != self._made_of:
            self._made, self._made_of = self._make(), version
        return self._made
