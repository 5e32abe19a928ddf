"""`make_app(view)`: the dashboard of one run. The address is the state; nothing is kept between requests."""

from typing import Any
from urllib.parse import parse_qsl

from dash import Dash, Input, Output, dcc, html
from flask import Response

from workbench.console import clean
from workbench.web.components.text import navigation
from workbench.web.pages import hang, memory, overview, tables
from workbench.web.view import View

PAGES = {"": "Overview", "memory": "Memory", "hang": "Hang", "trace": "Trace", "steps": "Steps"}


def make_app(view: View) -> Dash:
    """A Dash app that asks nothing of the network beyond itself."""
    app = Dash(__name__, title=f"workbench {clean(view.run.root)}", update_title="", suppress_callback_exceptions=True)
    app.layout = frame(view)
    memory.install(app, view)

    @app.callback(Output("page", "children"), Input("address", "pathname"), Input("address", "search"))
    def turn(pathname: str | None, search: str | None) -> Any:
        return page(view, (pathname or "/").strip("/"), dict(parse_qsl((search or "").lstrip("?"))))

    guard(app)
    return app


def frame(view: View) -> html.Div:
    links = [dcc.Link(title, href=f"/{name}") for name, title in PAGES.items()]
    header = html.Header([html.H1(f"workbench  {clean(view.run.root)}"), navigation(links, "views")])
    return html.Div([dcc.Location(id="address"), header, html.Main(id="page")])


def page(view: View, name: str, query: dict[str, str]) -> Any:
    """The page of that name."""
    if name == "":
        return overview.layout(view, query)
    if name == "memory":
        return memory.layout(view, query)
    if name == "hang":
        return hang.layout(view, query)
    if name in PAGES:
        return tables.layout(view, name)
    return html.P(f"There is no page {clean(name)}.")


def guard(app: Dash) -> None:
    """Headers that keep a page from loading or being loaded by anything else."""
    scripts = " ".join(f"'{digest.strip(chr(39))}'" for digest in app.csp_hashes())
    policy = (
        f"default-src 'self'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; "
        "img-src 'self' data: blob:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    )

    @app.server.after_request  # type: ignore[untyped-decorator]  # Dash types its server as Any
    def protect(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        response.headers["Referrer-Policy"] = "no-referrer"
        return response
