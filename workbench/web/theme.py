"""The light or dark theme of the page that is being requested; the browser names it in a cookie."""

from flask import has_request_context, request

from workbench.colours import LIGHT, THEMES, Theme

COOKIE = "workbench-theme"


def theme() -> Theme:
    """Return the theme that the browser shows; outside a request, return the light theme."""
    named = request.cookies.get(COOKIE, "") if has_request_context() else ""
    return THEMES.get(named, LIGHT)
