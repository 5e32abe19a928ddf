"""Access control of the dashboard: a request needs the token and must come from a page of the dashboard.

A dashboard that listens on loopback also requires that the request names a local host.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_TOKEN_BYTES = 18
_FOLDER_BYTES = 12
_HEADERS = [("Cache-Control", "no-store"), ("Referrer-Policy", "no-referrer"), ("X-Content-Type-Options", "nosniff")]
"""The headers of answers that concern the token: browsers must not store these, nor tell other pages their address."""


@dataclass(frozen=True)
class Door:
    """The secrets that open a dashboard: its token, and the random name with which the path of every URL begins.

    The random name is called the dashboard's folder: in `/x7Qd/memory`, it is `x7Qd`. The secrets are needed even on
    loopback, because every user of this machine can connect to a local port. The token is stored in a cookie, which is
    valid for this folder only. Without the folder, browsers would send the cookie to every port of the host, and so
    also to servers of other users of the machine.
    """

    token: str = field(default_factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES))
    folder: str = field(default_factory=lambda: secrets.token_urlsafe(_FOLDER_BYTES))

    @property
    def prefix(self) -> str:
        """The beginning of the path of each URL of the dashboard, such as `/x7Qd/`."""
        return f"/{self.folder}/"

    def inner_path(self, path: str) -> str | None:
        """Return the URL path of a request relative to the dashboard's folder; None if it is outside this folder."""
        offered, _, rest = path.removeprefix("/").partition("/")
        # As bytes, because `compare_digest` raises TypeError for text that is not ASCII.
        is_inside = hmac.compare_digest(offered.encode(errors="surrogateescape"), self.folder.encode())
        return f"/{rest}" if is_inside else None

    @property
    def cookie(self) -> str:
        """The name of the cookie, which is different for each dashboard.

        Browsers share cookies between all ports of a host, and so between dashboards.
        """
        return f"workbench_{hashlib.sha256(self.token.encode()).hexdigest()[:8]}"

    def fits(self, offered: str) -> bool:
        # A plain comparison takes longer the more characters are right, which tells an attacker the token bit by bit.
        return hmac.compare_digest(offered.encode(errors="surrogateescape"), self.token.encode())

    def admits(self, cookies: str) -> bool:
        """Return whether the token is among `cookies`, the `Cookie` header of a request."""
        try:
            morsel = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and self.fits(morsel.value)


@dataclass(frozen=True)
class AccessControl:
    """A WSGI application that checks the token before it passes a request to the application `inside`.

    A request with `?token=` is answered with a cookie and a redirect to the same page, whose address begins with a
    random folder. If `private` is set, the Host header must name the loopback interface. This stops DNS rebinding: a
    foreign web site lets its own host name resolve to this machine, but browsers then send that name as the host.
    """

    inside: WSGIApplication
    door: Door
    private: bool = True

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a WSGI request: pass it to the application `inside`, redirect it, or refuse it."""
        if self.private and host_name(environ) not in _LOOPBACK:
            return refuse(start_response, "unknown host")
        if _is_foreign(environ):
            return refuse(start_response, "sent by a page of another site")
        path = environ.get("PATH_INFO", "/")
        inner = self.door.inner_path(path)
        query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
        # The redirect removes the token from the address, so that a copied link or a screenshot does not give it away.
        if self.door.fits(query.pop("token", "")):
            return self._set_cookie(path if inner is None else inner, query, start_response)
        if inner is not None and self.door.admits(environ.get("HTTP_COOKIE", "")):
            if not path.startswith(self.door.prefix):
                # Relative links of the page would lead out of the folder.
                start_response("303 See Other", [("Location", self.door.prefix), *_HEADERS])
                return [b""]
            mounted = f"{environ.get('SCRIPT_NAME', '')}/{self.door.folder}"
            return self.inside(environ | {"SCRIPT_NAME": mounted, "PATH_INFO": inner}, start_response)
        return refuse(start_response, "open the address that `workbench serve` printed: it contains the access token")

    def _set_cookie(self, path: str, query: dict[str, str], start_response: StartResponse) -> Iterable[bytes]:
        # Without its slashes the path cannot name another host.
        location = self.door.prefix + path.lstrip("/\\")
        location += f"?{urlencode(query)}" if query else ""
        # Not `Strict`: a link in a mail or chat, and the file that opens the browser, would come without the cookie.
        cookie = f"{self.door.cookie}={self.door.token}; HttpOnly; SameSite=Lax; Path=/{self.door.folder}"
        start_response("303 See Other", [("Location", location), ("Set-Cookie", cookie), *_HEADERS])
        return [b""]


def host_name(environ: WSGIEnvironment) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:/@\[\]]+)(:[0-9]{1,5})?", environ.get("HTTP_HOST", ""))
    return match[1] if match else ""


def _is_foreign(environ: WSGIEnvironment) -> bool:
    """Return whether the headers of a request say that a page of another site or port sent it.

    A link on such a page, which the user clicks, is allowed: the link may have been sent in a chat.
    """
    sent_by = environ.get("HTTP_SEC_FETCH_SITE", "")
    if sent_by in ("cross-site", "same-site"):
        is_link = environ.get("HTTP_SEC_FETCH_MODE") == "navigate" and environ.get("HTTP_SEC_FETCH_DEST") == "document"
        return not (is_link and environ.get("REQUEST_METHOD") == "GET")
    origin = environ.get("HTTP_ORIGIN", "")
    # A browser that says "same-origin" may hide the origin itself ("null"), as our pages ask for no referrer.
    return bool(origin) and sent_by != "same-origin" and origin.partition("://")[2] != environ.get("HTTP_HOST", "")


def refuse(start_response: StartResponse, why: str) -> Iterable[bytes]:
    """Answer a WSGI request with status 403; the body says `why`."""
    start_response("403 Forbidden", [("Content-Type", "text/plain; charset=utf-8"), *_HEADERS])
    return [f"{why}\n".encode()]
