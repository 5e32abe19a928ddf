"""Who may come in: requests that name this host and, where others can reach it, carry the token."""

import hmac
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

WSGI = Callable[[dict[str, Any], Any], Iterable[bytes]]
COOKIE = "workbench_token"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class AccessControl:
    """A WSGI application in front of another.

    Without a token only requests to a name of the loopback interface pass: a page elsewhere that lets its own name
    point here (DNS rebinding) sends that name. With one, `?token=` is answered by a cookie and the address without it.
    """

    inside: WSGI
    token: str | None = None

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if self.token is None:
            host = environ.get("HTTP_HOST", "").rpartition(":")[0] or environ.get("HTTP_HOST", "")
            return self.inside(environ, start_response) if host in LOOPBACK else refused(start_response, "unknown host")
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        if self._fits(query.pop("token", "")):
            return self._welcome(environ, query, start_response)
        cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(COOKIE)
        if cookie is not None and self._fits(cookie.value):
            return self.inside(environ, start_response)
        return refused(start_response, "open the address that `workbench serve` printed: it carries the token")

    def _fits(self, offered: str) -> bool:
        return self.token is not None and hmac.compare_digest(offered.encode(), self.token.encode())

    def _welcome(self, environ: dict[str, Any], query: dict[str, str], start_response: Any) -> Iterable[bytes]:
        place = "/" + environ.get("PATH_INFO", "/").lstrip("/")  # two slashes would name another host
        address = place + (f"?{urlencode(query)}" if query else "")
        cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        start_response("303 See Other", [("Location", address), ("Set-Cookie", cookie)])
        return [b""]


def refused(start_response: Any, why: str) -> Iterable[bytes]:
    start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{why}\n".encode()]
