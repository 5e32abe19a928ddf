"""`make_app(served)`: the dashboard of one run. The address is the state; nothing is kept between requests."""

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, dcc, html
from dash.exceptions import PreventUpdate
from flask import Response

from workbench.console import clean
from workbench.options import Format
from workbench.present import render
from workbench.web.components.text import go, navigation
from workbench.web.pages import compare, config, hang, memory, overview, source, steps, trace
from workbench.web.served_run import ServedRun, asked
from workbench.web.step_window import OWN, Window, read, without_window

PAGES = {"memory": "Memory", "hang": "Hang", "trace": "Trace", "steps": "Steps", "compare": "Compare"}
"""The page of each room, which has a link where the room has something to show."""
LAYOUTS = {
    "": overview.layout,
    "memory": memory.layout,
    "hang": hang.layout,
    "trace": trace.layout,
    "steps": steps.layout,
    "compare": compare.layout,
    "config": config.layout,
    "source": source.layout,
}
WINDOWS = {"memory": memory.window, "trace": trace.window, "steps": steps.window}
"""Pages with an axis of their own; the others hand the window on as it is."""
INDEX = """<!doctype html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>"""
"""Dash's own page does not tell its language."""
DOCUMENTS = {
    "json": (Format.JSON, "application/json"),
    "md": (Format.MARKDOWN, "text/markdown; charset=utf-8"),
    "html": (Format.HTML, "text/html; charset=utf-8"),
}


def make_app(served: ServedRun, prefix: str = "/") -> Dash:
    """A Dash app that asks nothing of the network beyond itself. `prefix` is the path under which it is mounted."""
    app = Dash(
        __name__,
        title=f"workbench {clean(served.name)}",
        update_title="",
        index_string=INDEX,
        suppress_callback_exceptions=True,
        routes_pathname_prefix="/",
        requests_pathname_prefix=prefix,
    )
    app.layout = frame(served)
    memory.install(app, served)
    trace.install(app, served)
    steps.install(app, served)
    hang.install(app, served)
    config.install(app, served)
    turning(app, served)
    carry, shown = ClientsideFunction("workbench", "carry"), Input("window", "data")
    app.clientside_callback(carry, shown, prevent_initial_call=True)  # type: ignore[no-untyped-call]
    serve_documents(app, served)
    guard(app)
    return app


def frame(served: ServedRun) -> html.Div:
    """What stays while the pages turn. Links are relative, as the app may be mounted anywhere."""
    there = {"": "Overview", **{name: title for name, title in PAGES.items() if name in served.parts}}
    there |= {"config": "Config"} if served.manifest else {}
    links = [go(title, name or "./") for name, title in there.items()]
    saved = [html.A(name, href=f"report.{name}", download=f"report.{name}") for name in DOCUMENTS]
    tools = [html.Button("copy link", id="copy"), html.Button("light / dark", id="theme"), html.Span("save:"), *saved]
    header = [
        html.H1(f"workbench  {clean(served.name)}"),
        navigation(links, "views"),
        html.Div(tools, className="tools"),
    ]
    said: dict[str, Any] = {"role": "status", "aria-live": "polite"}
    return html.Div(
        [
            # Else it would load the page anew whenever the address bar holds a zoom that Dash has not heard of.
            dcc.Location(id="address", refresh="callback-nav"),
            dcc.Store(id="window", data=Window().told()),
            dcc.Store(id="shown"),
            html.Header(header),
            linked(hidden=not set(served.parts) & set(WINDOWS)),
            html.P(id="said", **said),
            html.Main(id="page", tabIndex=-1),
        ]
    )


def linked(*, hidden: bool) -> html.Section:
    """The window that all pages share, for eye and keyboard. Hidden where no page has one, as `turn` asks for it."""
    field = dcc.Input(id="steps", type="text", placeholder="all", debounce=True, maxLength=40)
    spoken: dict[str, Any] = {"aria-label": "steps in sight"}
    return html.Section(
        [html.Label(["steps in sight, on every page ", field]), html.Button("show all", id="reset")],
        className="linked",
        hidden=hidden,
        **spoken,
    )


def turning(app: Dash, served: ServedRun) -> None:
    """The page follows the address; a window that is typed or reset is a page as well."""

    @app.callback(
        Output("page", "children"),
        Output("window", "data"),
        Output("shown", "data"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("reset", "n_clicks"),
        Input("steps", "value"),
        State("window", "data"),
        State("shown", "data"),
    )
    def turn(pathname: str | None, search: str | None, _clicks: Any, typed: str | None, *states: Any) -> Any:
        (sight, shown), name, query = states, (pathname or "").rpartition("/")[2], asked(search)
        here = [name, without_window(query)]
        # Dash reads the address bar now and then, and the field when `carry` fills it: neither is news.
        if ctx.triggered_id == "address" and shown == here and sight["own"] == own_of(query):
            raise PreventUpdate
        if ctx.triggered_id == "steps" and (typed or "").strip() == sight["steps"]:
            raise PreventUpdate
        if ctx.triggered_id in ("steps", "reset"):
            query = without_window(query) | ({"steps": typed or ""} if ctx.triggered_id == "steps" else {})
        return page(served, name, query), window(served, name, query).told(), here


def own_of(query: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in query.items() if name in OWN}


def window(served: ServedRun, name: str, query: dict[str, str]) -> Window:
    """The window that a page shows, or hands on."""
    if name in WINDOWS and name in served.parts:
        return WINDOWS[name](served, query)
    return Window(None, read(query.get("steps", "")))


def page(served: ServedRun, name: str, query: dict[str, str]) -> Any:
    """The page of that name."""
    if name in LAYOUTS:
        return LAYOUTS[name](served, query)
    return html.P(f"There is no page {clean(name)}.")


def serve_documents(app: Dash, served: ServedRun) -> None:
    """The report itself, as a file to save."""

    @app.server.get("/report.<name>")  # type: ignore[untyped-decorator]  # Dash types its server as Any
    def document(name: str) -> Response:
        if name not in DOCUMENTS:
            return Response("no such document", 404)
        form, kind = DOCUMENTS[name]
        headers = {"Content-Disposition": f'attachment; filename="report.{name}"'}
        return Response(render(served.report, form, served.run), headers=headers, content_type=kind)


def guard(app: Dash) -> None:
    """Headers that keep a page from loading or being loaded by anything else."""
    scripts = " ".join(f"'{digest.strip(chr(39))}'" for digest in app.csp_hashes())
    policy = (
        f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )

    @app.server.after_request  # type: ignore[untyped-decorator]
    def protect(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response
