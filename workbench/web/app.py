"""`make_app(view)`: the dashboard of one run. The address is the state; nothing is kept between requests."""

from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, dcc, html
from flask import Response

from workbench.console import clean
from workbench.options import Format
from workbench.present import render
from workbench.web.components.text import navigation
from workbench.web.pages import compare, hang, memory, overview, source, steps, trace
from workbench.web.view import View, asked

PAGES = {"memory": "Memory", "hang": "Hang", "trace": "Trace", "steps": "Steps", "compare": "Compare"}
"""The page of each room, which has a link where the room has something to show."""
LAYOUTS = {
    "": overview.layout,
    "memory": memory.layout,
    "hang": hang.layout,
    "trace": trace.layout,
    "steps": steps.layout,
    "compare": compare.layout,
    "source": source.layout,
}
ZOOMED = ("timeline", "gantt")
INDEX = """<!doctype html>
<html lang="en"><head>{%metas%}<title>{%title%}</title>{%favicon%}{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body></html>"""
"""Dash's own page does not tell its language."""
DOCUMENTS = {
    "json": (Format.JSON, "application/json"),
    "md": (Format.MARKDOWN, "text/markdown; charset=utf-8"),
    "html": (Format.HTML, "text/html; charset=utf-8"),
}


def make_app(view: View, prefix: str = "/") -> Dash:
    """A Dash app that asks nothing of the network beyond itself. `prefix` is the path under which it is mounted."""
    app = Dash(
        __name__,
        title=f"workbench {clean(view.name)}",
        update_title="",
        index_string=INDEX,
        suppress_callback_exceptions=True,
        routes_pathname_prefix="/",
        requests_pathname_prefix=prefix,
    )
    app.layout = frame(view)
    memory.install(app, view)
    trace.install(app, view)
    for name in ZOOMED:
        remember(app, name)

    @app.callback(Output("page", "children"), Input("address", "pathname"), Input("address", "search"))
    def turn(pathname: str | None, search: str | None) -> Any:
        return page(view, (pathname or "").rpartition("/")[2], asked(search))

    serve_documents(app, view)
    guard(app)
    return app


def frame(view: View) -> html.Div:
    """What stays while the pages turn. Links are relative, as the app may be mounted anywhere."""
    there = {"": "Overview", **{name: title for name, title in PAGES.items() if name in view.parts}}
    links = [dcc.Link(title, href=name or "./") for name, title in there.items()]
    saved = [html.A(name, href=f"report.{name}", download=f"report.{name}") for name in DOCUMENTS]
    tools = [html.Button("copy link", id="copy"), html.Button("light / dark", id="theme"), html.Span("save:"), *saved]
    header = [
        html.H1(f"workbench  {clean(view.name)}"),
        navigation(links, "views"),
        html.Div(tools, className="tools"),
    ]
    said: dict[str, Any] = {"role": "status", "aria-live": "polite"}
    return html.Div(
        [dcc.Location(id="address"), html.Header(header), html.P(id="said", **said), html.Main(id="page", tabIndex=-1)]
    )


def page(view: View, name: str, query: dict[str, str]) -> Any:
    """The page of that name."""
    if name in LAYOUTS:
        return LAYOUTS[name](view, query)
    return html.P(f"There is no page {clean(name)}.")


def remember(app: Dash, name: str) -> None:
    """Put the window that a figure shows into the address, without asking for the page again."""
    function = ClientsideFunction("workbench", "remember")
    zoomed = Input(name, "relayoutData")
    app.clientside_callback(function, zoomed, prevent_initial_call=True)  # type: ignore[no-untyped-call]


def serve_documents(app: Dash, view: View) -> None:
    """The report itself, as a file to save."""

    @app.server.get("/report.<name>")  # type: ignore[untyped-decorator]  # Dash types its server as Any
    def document(name: str) -> Response:
        if name not in DOCUMENTS:
            return Response("no such document", 404)
        form, kind = DOCUMENTS[name]
        headers = {"Content-Disposition": f'attachment; filename="report.{name}"'}
        return Response(render(view.report, form, view.run), headers=headers, content_type=kind)


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
