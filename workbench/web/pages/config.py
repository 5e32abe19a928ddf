"""How the run was configured: each key with its value, where that came from and what became of it; `?key=` searches."""

from typing import Any
from urllib.parse import urlencode

from dash import Dash, Input, Output, State, dcc, html, no_update

from workbench.console import clean
from workbench.present.table import table as table_of
from workbench.run_settings import SIGNS, command_words, run_settings
from workbench.web.components.text import choice, table
from workbench.web.served_run import ServedRun, asked

KINDS = ("all keys", "not the default")


def layout(served: ServedRun, query: dict[str, str]) -> html.Div:
    if not served.manifest:
        return html.Div("This run left no run.json, which tells its configuration.")
    sought, kind = query.get("key", "")[:100], query.get("show", KINDS[0])
    rows = [
        (one.key, one.value, one.origin, f"{SIGNS.get(one.cls, '')} {one.cls}", one.reason)
        for one in run_settings(served.manifest)
        if kind != KINDS[1] or one.origin != "default"
    ]
    kept = [row for row in rows if any(sought.casefold() in cell.casefold() for cell in row)]
    field = dcc.Input(id="key", type="search", value=sought, debounce=True)
    words = " ".join(command_words(served.manifest))
    told = table_of(f"Settings ({len(kept)} of {len(rows)})", "key | value | from | class | why", kept, len(kept))
    return html.Div(
        [
            html.H2("How the run was configured"),
            *([html.P(["started as ", html.Code(clean(words))])] if words else []),
            html.Div(html.Label(["find a key, value or origin ", field]), className="fields"),
            choice("show", [(one, one) for one in KINDS], kind, query),
            table(told),
        ],
        className="config",
    )


def install(app: Dash, served: ServedRun) -> None:
    """What is sought goes into the address."""
    if not served.manifest:
        return

    @app.callback(
        Output("address", "search", allow_duplicate=True),
        Input("key", "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def seek(sought: str | None, search: str | None) -> Any:
        query = asked(search)
        if (sought or "") == query.get("key", ""):
            return no_update
        return f"?{urlencode(query | {'key': sought or ''})}"
