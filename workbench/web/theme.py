"""How the browser shows the page that is being requested, as its cookies say: the theme, and whether it is narrow."""

from flask import has_request_context, request

from workbench.colours import LIGHT, THEMES, Theme

COOKIE, NARROW_COOKIE = "workbench-theme", "workbench-narrow"


def theme() -> Theme:
    """Return the theme that the browser shows; outside a request, return the light theme."""
    named = request.cookies.get(COOKIE, "") if has_request_context() else ""
    return THEMES.get(named, LIGHT)


def narrow() -> bool:
    """Return whether the browser's window is as narrow as a phone's; outside a request, return False."""
    return has_request_context() and request.cookies.get(NARROW_COOKIE) == "yes"
