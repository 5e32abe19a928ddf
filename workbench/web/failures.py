"""Messages in the browser that a page or a callback failed; the server's terminal shows the details."""

from dash import html, set_props

from analyzers.errors import WorkbenchError
from workbench.console import LONGEST, clean, explain
from workbench.web.components.links import labelled, link

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


def failed_page(title: str, error: Exception) -> html.Div:
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


def say_failure(error: Exception) -> None:
    """Print the error of a callback on the terminal, and show it above the page; the page itself stays unchanged."""
    explain(error)
    set_props(MESSAGE, {"children": f"This part of the page cannot be updated: {reason(error)}. {_DETAILS}"})


def forget_failure() -> None:
    """Hide the message about an earlier failed callback, because the user now sees another page."""
    set_props(MESSAGE, {"children": ""})
