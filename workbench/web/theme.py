"""How the browser shows the requested page: with a light or dark theme, and in a narrow or wide window.

The browser sends both in cookies.
"""

from flask import has_request_context, request

from workbench.colours import LIGHT, THEMES, Theme

COOKIE, _NARROW_COOKIE = "workbench-theme", "workbench-narrow"


def theme() -> Theme:
    named = request.cookies.get(COOKIE, "") if has_request_context() else ""
    return THEMES.get(named, LIGHT)


def narrow() -> bool:
    return has_request_context() and request.cookies.get(_NARROW_COOKIE) == "yes"
