"""Access control of the dashboard: requests need its token, and a local dashboard accepts only local host names."""

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
TOKEN_BYTES = 18
HEADERS = [("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"), ("X-Content-Type-Options", "nosniff")]
"""Of answers that have to do with the token: none of them may be kept, or tell another page where it was."""


@dataclass(frozen=True)
class Door:
    """The token of a dashboard; it is needed even on loopback, where every user of this machine can connect."""

    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))

    @property
    def cookie(self) -> str:
        """The name of the cookie. Each dashboard has another name, because browsers share cookies between ports of a
        host.
        """
        return f"workbench_{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    def fits(self, offered: str) -> bool:
        """Return whether `offered` equals the token."""
        # A plain comparison takes longer the more characters are right, which tells an attacker the token bit by bit.
        return hmac.compare_digest(offered.encode(errors="surrogateescape"), self.token.encode())

    def admits(self, cookies: str) -> bool:
        """Return whether a request's `Cookie` header contains the token."""
        try:
            morsel = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and self.fits(morsel.value)


@dataclass(frozen=True)
class AccessControl:
    """A WSGI application that checks the token before it calls the application `inside`.

    It answers `?token=` with a cookie and a redirect to the address without the token. If `private`, the Host header
    must name the loopback interface: a foreign web page that makes its own name point here (DNS rebinding) would send
    that name.
    """

    inside: WSGIApplication
    door: Door
    private: bool = True

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a WSGI request: pass it to `inside`, or refuse it."""
        if self.private and host_name(environ) not in LOOPBACK:
            return refuse(start_response, "unknown host")
        query = dict(parse_qsl(environ.get("QUERY_STRING", ""), errors="surrogateescape"))
        # The redirect removes the token from the address, so that a copied link or a screenshot does not give it away.
        if self.door.fits(query.pop("token", "")):
            return self._set_cookie(environ, query, start_response)
        if self.door.admits(environ.get("HTTP_COOKIE", "")):
            return self.inside(environ, start_response)
        return refuse(start_response, "open the address that `workbench serve` printed: it contains the access token")

    def _set_cookie(
        self, environ: WSGIEnvironment, query: dict[str, str], start_response: StartResponse
    ) -> Iterable[bytes]:
        path = "/" + environ.get("PATH_INFO", "/").lstrip("/\\")  # two slashes would name another host
        location = path + (f"?{urlencode(query, errors='surrogateescape')}" if query else "")
        # Not `Strict`: a link in a mail or chat, and the file that opens the browser, would come without the cookie.
        cookie = f"{self.door.cookie}={self.door.token}; HttpOnly; SameSite=Lax; Path=/"
        start_response("303 See Other", [("Location", location), ("Set-Cookie", cookie), *HEADERS])
        return [b""]


def host_name(environ: WSGIEnvironment) -> str:
    """Return the host name in a request's Host header, without the port."""
    host: str = environ.get("HTTP_HOST", "")
    # An IPv6 host holds colons itself, so only what follows the last one is the port.
    return host.rpartition(":")[0] or host


def refuse(start_response: StartResponse, why: str) -> Iterable[bytes]:
    """Answer a WSGI request with status 403 and the reason."""
    start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8"), *HEADERS])
    return [f"{why}\n".encode()]
