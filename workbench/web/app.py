"""Create the Dash app of the dashboard of a run with `make_app(served)`.

All state is in the page's address (URL); the server keeps none.
"""

from contextlib import suppress
from typing import Any
from wsgiref.util import setup_testing_defaults

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html, set_props
from dash.development.base_component import Component
from dash.exceptions import PreventUpdate
from flask import Response
from plotly.io.json import to_json_plotly
from werkzeug.exceptions import HTTPException

from analyzers.errors import WorkbenchError
from workbench.colours import css_themes
from workbench.command_options.options import Format
from workbench.console import LONGEST, clean, explain
from workbench.present import render
from workbench.rooms import FACES
from workbench.web.components.links import labelled, link
from workbench.web.page import page_of, typed_text
from workbench.web.pages import config, overview, source
from workbench.web.query import Query, parse_query
from workbench.web.rail import header, key_sheet, rail, skip_link
from workbench.web.served_run import ServedRun
from workbench.web.step_window import ALL_STEPS, Window, own_window, parse_steps, window_state, without_window

_DETAILS = "The terminal in which the dashboard was started has the details; with --debug, also a traceback."
MESSAGE = "failure"
"""The id of the element that says that a callback failed."""


def reason(error: Exception) -> str:
    """Return the type and message of an error in one line, such as `KeyError: 'rank'`, without control characters."""
    text = error.message if isinstance(error, WorkbenchError) else f"{type(error).__name__}: {error}"
    return clean(" ".join(text.split())[:LONGEST])


def message() -> html.P:
    """Return the element for the message that a callback failed; it stays empty and invisible until that happens."""
    return html.P(id=MESSAGE, role="alert")


def _failed_page(title: str, error: Exception) -> html.Div:
    """Print an error on the terminal, and return the page that names the error.

    This page is shown instead of the page called `title`, which could not be made.
    """
    explain(error)
    return html.Div(
        [
            html.H2(f"The page {title} cannot be shown."),
            labelled("Why", [reason(error)]),
            labelled("Next", [_DETAILS]),
            html.P(link("Back to the overview", "./", fixed=True)),
        ],
        id="failed",
    )


def _say_failure(error: Exception) -> None:
    explain(error)
    set_props(MESSAGE, {"children": f"This part of the page cannot be updated: {reason(error)}. {_DETAILS}"})


def _forget_failure() -> None:
    """Hide the message about an earlier failed callback, because the user now sees another page."""
    set_props(MESSAGE, {"children": ""})


PAGES = {
    "": overview.PAGE,
    **{room: page_of(room) for room, faces in FACES.items() if faces.page},
    "config": config.PAGE,
    "source": source.PAGE,
}
"""{address of a page: the page}."""
INDEX = """<!doctype html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}<style>{colours}</style>{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>"""
"""The HTML frame of all pages; unlike Dash's own frame, it states the language, which screen readers need."""
_DOCUMENTS = {
    "json": (Format.JSON, "application/json"),
    "md": (Format.MARKDOWN, "text/markdown; charset=utf-8"),
    "html": (Format.HTML, "text/html; charset=utf-8"),
}


def make_app(served: ServedRun, prefix: str = "/") -> Dash:
    """Return the Dash app of a dashboard; its pages load nothing from other servers.

    `prefix` is the URL path under which the app is mounted, such as `/x7Qd/`.
    """
    app = new_app(served.short_name, prefix)
    app.layout = frame(served)
    for page in PAGES.values():
        if page.install:
            page.install(app, served)
    _install_pages(app, served)
    # In the browser: a request for each zoom only to change the address would delay the chart.
    carry, shown = ClientsideFunction("workbench", "carry"), Input("window", "data")
    app.clientside_callback(carry, shown, prevent_initial_call=True)  # type: ignore[no-untyped-call]
    # Dash itself would write the address that it read last, and so lose a zoom that the script put there.
    follow, asked = ClientsideFunction("workbench", "follow"), Input("asked", "data")
    app.clientside_callback(follow, asked, prevent_initial_call=True)  # type: ignore[no-untyped-call]
    _serve_documents(app, served)
    finish(app)
    return app


def new_app(name: str, prefix: str) -> Dash:
    """Return a Dash app without pages, mounted under the URL path `prefix`; browsers show `name` as the title."""
    return Dash(
        __name__,
        title=f"{clean(name)} - workbench",
        # By default Dash changes the title to `Updating...` while a callback runs.
        update_title="",
        index_string=INDEX.replace("{colours}", css_themes()),
        # Charts of the other pages are not in the layout when their callbacks are registered.
        suppress_callback_exceptions=True,
        on_error=_say_failure,
        routes_pathname_prefix="/",
        requests_pathname_prefix=prefix,
    )


def finish(app: Dash) -> None:
    """Add error handling and protective HTTP headers to an app, and let it answer a first request.

    Call this after all pages were added. The first request completes Dash's set-up (see `_set_up`).
    """
    _answer_errors(app)
    _protect(app)
    _set_up(app)


def _set_up(app: Dash) -> None:
    """Let Dash finish its set-up: answer one request before the server accepts any.

    Dash finishes its set-up while it answers the first request. A second request at the same time would get a page
    without styles or scripts.
    """
    environ: dict[str, Any] = {"PATH_INFO": "/"}
    setup_testing_defaults(environ)
    answered = app.server(environ, lambda *_: lambda _: None)
    for _ in answered:
        pass
    answered.close()


def frame(served: ServedRun) -> html.Div:
    """Return the parts of the dashboard that every page has: header, sidebar, and an empty container for the page.

    Links are relative, because the app may be mounted under any path.
    """
    listed = ("", *(room for room in PAGES if room in served.rooms), *(["config"] if served.manifest else []))
    with_steps = any(PAGES[name].window for name in listed)
    spoken: dict[str, Any] = {"role": "status", "aria-live": "polite"}
    return html.Div(
        [
            # Without it Dash would load the page anew whenever the address holds a zoom that Dash has not heard of.
            dcc.Location(id="address", refresh="callback-nav"),
            dcc.Store(id="window", data={**Window().state()}),
            dcc.Store(id="shown"),
            dcc.Store(id="themed"),
            dcc.Store(id="typed"),
            dcc.Store(id="asked"),
            dcc.Store(id="here"),
            skip_link(),
            header(served, [*_DOCUMENTS], with_steps=with_steps),
            rail(served, [(name, PAGES[name].title) for name in listed]),
            html.P(id="said", **spoken),
            message(),
            html.Main(id="page", tabIndex=0),
            key_sheet(),
        ],
        className="shell",
    )


def _install_pages(app: Dash, served: ServedRun) -> None:
    """Register the callback that shows the page named in the address, and stores the range of steps that it shows."""

    @app.callback(
        Output("page", "children"),
        Output("window", "data"),
        Output("shown", "data"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("reset", "n_clicks"),
        Input("typed", "data"),
        Input("themed", "data"),
        State("window", "data"),
        State("shown", "data"),
        State("here", "data"),
    )
    def turn(pathname: object, search: object, _clicks: object, typed: object, *states: object) -> object:
        _themed, state, shown, here = states
        # Dash reports the address at times without a change.
        causes = {cause.partition(".")[0] for cause in ctx.triggered_prop_ids}
        if causes & {"typed", "reset", "themed"} and isinstance(here, str):
            search = here
        name, query = typed_text(pathname).rpartition("/")[2], parse_query(search)
        current, own = [name, without_window(query), own_window(query)], window_state(state)["own"]
        is_shown = isinstance(shown, list) and shown[:2] == current[:2] and own == current[2]
        turned = "address" in causes and shown != current and not is_shown
        if not (turned or causes & {"typed", "reset", "themed"}):
            raise PreventUpdate
        if not turned and causes & {"typed", "reset"}:
            text = typed_text(typed).strip() if "typed" in causes else ""
            query = without_window(query) | {"steps": text or ALL_STEPS}
        _forget_failure()
        return *_page_or_failure(served, name, query), current


def _page_or_failure(served: ServedRun, name: str, query: Query) -> tuple[Component, dict[str, object]]:
    """Return the content of a page and the range that it shows; if the page fails, return a message instead."""
    try:
        return page(served, name, query), {**window(served, name, query).state()}
    except Exception as error:  # noqa: BLE001  # whatever a page raises, the browser must not show an empty page
        return _failed_page(PAGES[name].title, error), {**Window().state()}


def window(served: ServedRun, name: str, query: Query) -> Window:
    """Return the range that page `name` shows, as a range of its own axis (such as ns) and as a range of steps.

    Some pages show no range. For these, return the steps in the address, so that links to other pages keep the steps.
    """
    of = PAGES[name].window if name in served.rooms and name in PAGES else None
    if of:
        return of(served, query)
    return Window(None, parse_steps(query.get("steps", "")))


def page(served: ServedRun, name: str, query: Query) -> Component:
    return PAGES[name].layout(served, query) if name in PAGES else _no_page(name)


def _no_page(name: str) -> Component:
    return html.Div(
        [html.H2(f"There is no page {clean(name)}."), html.P(link("Back to the overview", "./", fixed=True))]
    )


def prepare(served: ServedRun, name: str) -> None:
    """Build the page named `name` once and discard it, so that the first browser does not wait.

    The first build of a page is slow: files are mapped into memory, and Plotly imports some modules when it first
    draws.
    """
    # A page that cannot be made says so when it is asked for.
    with suppress(Exception):
        to_json_plotly(page(served, name, {}))


def _serve_documents(app: Dash, served: ServedRun) -> None:
    """Register the URLs from which the report can be downloaded, such as `report.json`."""

    @app.server.get("/report.<name>")  # type: ignore[untyped-decorator]  # Dash types its server as Any
    def document(name: str) -> Response:
        if name not in _DOCUMENTS:
            return Response("no such document", 404)
        form, kind = _DOCUMENTS[name]
        headers = {"Content-Disposition": f'attachment; filename="report.{name}"'}
        return Response(render(served.report, form, served.run), headers=headers, content_type=kind)


def _answer_errors(app: Dash) -> None:
    """Answer a failed request with status 500, and print two lines on the terminal instead of a traceback."""

    @app.server.errorhandler(Exception)  # type: ignore[untyped-decorator]
    def failed(error: Exception) -> Response | HTTPException:
        if isinstance(error, HTTPException):
            return error
        explain(error)
        return Response("this request failed; the terminal of the server says why\n", 500, content_type="text/plain")


def _protect(app: Dash) -> None:
    """Add HTTP headers so that pages load nothing from other servers, and other sites cannot embed the pages."""
    # Dash writes inline scripts into its page; their digests allow these and no others.
    scripts = " ".join(f"'{digest.strip(chr(39))}'" for digest in app.csp_hashes())
    policy = (
        f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )

    @app.server.after_request  # type: ignore[untyped-decorator]
    def add_headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response
