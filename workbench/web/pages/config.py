"""The page with the configuration: each setting with its value, its origin and how it was handled.

In the address, `?key=` filters the settings.
"""

from dash import Dash, Input, Output, State, dcc, html, no_update

from workbench.console import clean
from workbench.present.table import table as table_of
from workbench.run_settings import SIGNS, command_words, run_settings
from workbench.web.components.links import choice, table
from workbench.web.page import Page, typed_text
from workbench.web.query import Query, address, parse_query, search_text
from workbench.web.served_run import ServedRun

_ALL_KEYS, _CHANGED_KEYS = "all keys", "changed from the default"


def layout(served: ServedRun, query: Query) -> html.Div:
    if not served.manifest:
        return html.Div("This run has no run.json, which would record its configuration.")
    wanted, shown = search_text(query, "key"), query.get("show", _ALL_KEYS)
    rows = [
        (setting.key, setting.value, setting.origin, f"{SIGNS.get(setting.cls, '')} {setting.cls}", setting.reason)
        for setting in run_settings(served.manifest)
        if shown != _CHANGED_KEYS or setting.origin != "default"
    ]
    kept = [row for row in rows if any(wanted.casefold() in cell.casefold() for cell in row)]
    field = dcc.Input(id="key", type="search", value=wanted, debounce=True)
    # One element for each word, so that no line breaks within an option.
    command = [part for word in command_words(served.manifest) for part in (html.Span(clean(word)), " ")]
    title = "Settings" if len(kept) == len(rows) else f"Settings that match, of {len(rows)}"
    heads = "key | value | set by | effect | reason"
    return html.Div(
        [
            html.H2("Configuration of the run"),
            *([html.P(["Started as ", html.Code(command)])] if command else []),
            html.Div(
                [
                    html.Label(["Search keys, values and origins ", field]),
                    choice("show", [(name, name) for name in (_ALL_KEYS, _CHANGED_KEYS)], shown, query, "keys"),
                ],
                className="fields",
            ),
            table(table_of(title, heads, kept, len(kept)), filtered=False),
        ],
        className="config",
    )


def install(app: Dash, served: ServedRun) -> None:
    # Without a manifest the page has no search field, and Dash would wait for it.
    if not served.manifest:
        return

    @app.callback(
        Output("asked", "data", allow_duplicate=True),
        Input("key", "value"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def search_settings(entered: object, search: object) -> object:
        query, text = parse_query(search), typed_text(entered)
        return no_update if text == query.get("key", "") else address(query | {"key": text})


PAGE = Page("Config", layout, install=install)
