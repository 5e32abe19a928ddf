"""The list of keys of the dashboard, which `?` opens, and the link past the sidebar for people without a mouse."""

from typing import Any

from dash import html

KEYS = {
    "Everywhere": (
        ("?", "open or close this list"),
        ("Tab, Enter", "go to the next control, follow it"),
        ("Q", "hide or show the details beside a chart"),
    ),
    "A chart over time or steps": (
        ("← →", "move to the left or right"),
        ("+ -", "zoom in or out"),
        ("0", "show everything"),
        ("Click in a legend", "show one series alone, or all again"),
        ("Ctrl or Shift+click", "hide or show one series"),
    ),
    "The tree of live memory or of calls": (
        ("← → ↑ ↓", "go to the part beside, above or below"),
        ("Enter", "zoom into the part"),
        ("Backspace", "zoom out"),
    ),
    "The timeline of a trace": (
        ("W S", "zoom in or out"),
        ("A D", "move to the left or right"),
        ("← → or , .", "go to the previous or next event of the line"),
        ("↑ ↓", "go to the line above or below"),
        ("Enter", "show the callers of the event, and what it launched"),
        ("F", "fit the event to the window"),
        ("M", "sum up the time of the event"),
        ("/", "find events by name"),
        ("N, Shift+N", "go to the next or previous match"),
        ("0", "show everything"),
        ("Esc", "clear the selection"),
    ),
    "The strip above the timeline": (
        ("← →", "move the visible part"),
        ("↑ ↓ or + -", "make it shorter or longer"),
        ("Page Up, Page Down", "move by the visible part"),
        ("Home, End", "go to the beginning or end of the trace"),
    ),
}
"""{where keys act: (keys, what they do)}; charts and the timeline react to them while they have the focus."""


def key_sheet() -> html.Dialog:
    """Return the list of keys; the script of all pages opens and closes it."""
    parts = [
        part
        for title, keys in KEYS.items()
        for part in (
            html.H3(title),
            html.Dl([cell for key, what in keys for cell in (html.Dt(html.Kbd(key)), html.Dd(what))]),
        )
    ]
    spoken: dict[str, Any] = {"aria-label": "Keys"}
    return html.Dialog([html.H2("Keys"), *parts, html.Button("Close", id="close-keys")], id="keys", **spoken)


def keys_button() -> html.Button:
    """Return the button that opens the list of keys."""
    spoken: dict[str, Any] = {"aria-label": "Keys"}
    return html.Button("?", id="show-keys", title="Keys", **spoken)


def skip_link() -> html.Button:
    """Return a button that is visible while it has the focus, and moves the focus past header and sidebar."""
    return html.Button("Skip to the page", id="skip", className="skip")
