"""Who may open the dashboard: requests that name this host and, where others can reach it, carry the token."""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from http.cookies import SimpleCookie
from urllib.parse import parse_qsl, urlencode
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

COOKIE = "workbench_token"
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True)
class AccessControl:
    """A WSGI application in front of another.

    Without a token only requests to a name of the loopback interface pass: a foreign page that points its own name
    here (DNS rebinding) sends that name. With a token, `?token=` is answered by a cookie and the address without it.
    """

    inside: WSGIApplication
    token: str | None = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Pass a request on, or refuse it."""
        if self.token is None:
            # An IPv6 host holds colons itself, so only what follows the last one is the port.
            host = environ.get("HTTP_HOST", "").rpartition(":")[0] or environ.get("HTTP_HOST", "")
            return self.inside(environ, start_response) if host in LOOPBACK else refuse(start_response, "unknown host")
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        # The redirect removes the token from the address, so that a copied link or a screenshot does not give it away.
        if self._fits(query.pop("token", "")):
            return self._set_cookie(environ, query, start_response)
        cookie = SimpleCookie(environ.get("HTTP_COOKIE", "")).get(COOKIE)
        if cookie is not None and self._fits(cookie.value):
            return self.inside(environ, start_response)
        return refuse(start_response, "open the address that `workbench serve` printed: it contains the access token")

    def _fits(self, offered: str) -> bool:
        # A plain comparison takes longer the more characters are right, which tells an attacker the token bit by bit.
        return self.token is not None and hmac.compare_digest(offered.encode(), self.token.encode())

    def _set_cookie(
        self, environ: WSGIEnvironment, query: dict[str, str], start_response: StartResponse
    ) -> Iterable[bytes]:
        path = "/" + environ.get("PATH_INFO", "/").lstrip("/")  # two slashes would name another host
        location = path + (f"?{urlencode(query)}" if query else "")
        cookie = f"{COOKIE}={self.token}; HttpOnly; SameSite=Strict; Path=/"
        start_response("303 See Other", [("Location", location), ("Set-Cookie", cookie)])
        return [b""]


def refuse(start_response: StartResponse, why: str) -> Iterable[bytes]:
    """Answer 403 with the reason."""
    start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{why}\n".encode()]
