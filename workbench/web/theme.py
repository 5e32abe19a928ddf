"""How the browser shows the requested page: with a light or dark theme, and in a narrow or wide window.

The browser sends both in cookies.
"""

from flask import has_request_context, request

from workbench.colours import LIGHT, THEMES, Theme

COOKIE, _NARROW_COOKIE = "workbench-theme", "workbench-narrow"


def theme() -> Theme:
    """Return the theme that the browser shows; outside a request, the light theme."""
    named = request.cookies.get(COOKIE, "") if has_request_context() else ""
    return THEMES.get(named, LIGHT)


def narrow() -> bool:
    """Return whether the browser's window is as narrow as a phone; outside a request, False."""
    return has_request_context() and request.cookies.get(_NARROW_COOKIE) == "yes"
