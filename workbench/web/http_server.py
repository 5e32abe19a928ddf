"""The HTTP server of the dashboard, with limits on connections, headers, bodies and time."""

import copy
import hashlib
import hmac
import json
import logging
import os
import re
import resource
import secrets
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from threading import Lock
from typing import IO, Any
from urllib.parse import parse_qsl, urlencode
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from waitress.channel import HTTPChannel
from waitress.parser import HTTPRequestParser
from waitress.server import BaseWSGIServer, MultiSocketServer, create_server
from waitress.wasyncore import close_all
from werkzeug.exceptions import HTTPException
from werkzeug.wsgi import get_input_stream

from analyzers.errors import InputError, WorkbenchError
from analyzers.rooms import room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.errors import UsageProblem
from workbench.web.app import make_app
from workbench.web.served_run import served_run

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


# Files that users drop onto the page: each set of files is opened as a separate dashboard.
#
# `PUT /drop/SET/NAME` stores a file. `POST /drop/SET` analyses the files of a set, and returns the address of their
# dashboard, `/open/SET/`. The files are removed when the server ends.

MOST_BYTES = 2 << 30
"""The largest size, in bytes, of all dropped files together."""
_MOST_SETS = 16
CHUNK = 1 << 20
_BY_PATH = "open it by its path: workbench serve PATH"
_HEADER = ("HTTP_X_WORKBENCH", "drop")
"""The header, as (name, value), that uploads must have, which prevents uploads by pages of other sites.

Before a browser sends such a header for another site's page, it asks this server for permission (a CORS preflight),
which the server never gives.
"""


class Uploads:
    """A WSGI application that serves `main`, and a dashboard for each set of files that is dropped onto the page.

    The files are stored in `folder`. `beside` is {name: application} of dashboards that exist from the start; a set
    cannot have such a name. `prefix` is the URL path of all of them. Dashboards of dropped files show no source files
    of this machine, because a dropped file could mention any file.
    """

    def __init__(
        self,
        main: WSGIApplication,
        folder: Path,
        options: Options,
        beside: Mapping[str, WSGIApplication] | None = None,
        prefix: str = "/",
    ) -> None:
        self._main, self._folder, self._options = main, folder, options
        self._opened: dict[str, WSGIApplication] = {**(beside or {})}
        self._prefix, self._writing = prefix, Lock()

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a WSGI request: store a file, open a set, or pass the request on to one of the dashboards."""
        path = environ.get("PATH_INFO", "/")
        if match := re.match(r"/open/(\d+|[a-z]+)(/.*)", path):
            return self._enter(match[1], match[2], environ, start_response)
        if match := re.fullmatch(r"/drop/(\d+)(?:/([^/]+))?", path):
            return self._answer(match[1], match[2], environ, start_response)
        return self._main(environ, start_response)

    def _enter(self, name: str, path: str, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if name not in self._opened:
            return answer(
                start_response, {"error": "no dashboard is open here", "hint": "drop the file again"}, "404 Not Found"
            )
        inner = environ | {"SCRIPT_NAME": f"{environ.get('SCRIPT_NAME', '')}/open/{name}", "PATH_INFO": path}
        return self._opened[name](inner, start_response)

    def _answer(
        self, name: str, file: str | None, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        # A form on a foreign page could send files here, but not this header.
        if environ.get(_HEADER[0]) != _HEADER[1]:
            return refuse(start_response, "not sent by the page")
        if not re.fullmatch("[0-9]{0,18}", environ.get("CONTENT_LENGTH", "")):
            return answer(start_response, {"error": "a wrong length", "hint": "send it again"}, "400 Bad Request")
        try:
            return answer(start_response, self._take(name, file, environ))
        except WorkbenchError as error:
            return answer(start_response, {"error": error.message, "hint": error.hint}, "422 Unprocessable Content")

    def _take(self, name: str, file: str | None, environ: WSGIEnvironment) -> dict[str, str]:
        """Store a file of the set `name`, or open the set's dashboard if `file` is None; return the JSON answer.

        Raises:
            WorkbenchError: The file is too large, or of an unknown kind.
        """
        if file is not None:
            # Several at once could pass the limit together. No client is waited for: the body is here already.
            with self._writing:
                self._keep(name, file, environ)
            return {"kept": file}
        run = discover(self._folder / name)
        served = served_run(run, room_for(run), self._options, trusted=False)
        place = f"{self._prefix}open/{name}/"
        self._opened[name] = make_app(served, place).server
        return {"at": place}

    def _keep(self, name: str, file: str, environ: WSGIEnvironment) -> None:
        """Store the body of a request as the file `file` of the set `name`, within the size limits."""
        if int(environ.get("CONTENT_LENGTH") or 0) > MOST_BYTES:
            raise InputError(f"{file}: too large to drop", _BY_PATH)
        home = self._folder / name
        try:
            if not home.exists() and len(list(self._folder.iterdir())) >= _MOST_SETS:
                raise InputError(f"{_MOST_SETS} sets of files are open already", "start the server again")
            home.mkdir(exist_ok=True)
            self._store(home / _safe(file), environ)
        except OSError as error:
            raise InputError(f"{file}: {error.strerror}", _BY_PATH) from error
        except (HTTPException, NoRoom) as error:
            raise InputError(f"{file}: {error}", _BY_PATH) from error

    def _store(self, target: Path, environ: WSGIEnvironment) -> None:
        """Write the body of a request to `target`; if this fails midway, remove the incomplete file."""
        # Before the free space is computed: a file that is dropped again replaces itself.
        target.unlink(missing_ok=True)
        # Counted anew each time: the folder is the only record, and files are few.
        free = MOST_BYTES - sum(path.stat().st_size for path in self._folder.rglob("*") if path.is_file())
        try:
            with target.open("wb") as kept:
                _copy_at_most(free, environ, kept)
        except (OSError, HTTPException, NoRoom):
            target.unlink(missing_ok=True)
            raise


class NoRoom(Exception):
    """Raised if a file does not fit into the size limit for all dropped files together."""


def _copy_at_most(limit: int, environ: WSGIEnvironment, target: IO[bytes]) -> None:
    """Copy the body of a request to `target`, at most `limit` bytes.

    The bytes are counted, because a body may be longer than its Content-Length header says.

    Raises:
        NoRoom: The body has more than `limit` bytes.
    """
    body = get_input_stream(environ)
    while chunk := body.read(CHUNK):
        limit -= len(chunk)
        if limit < 0:
            raise NoRoom("too large to drop")
        target.write(chunk)


def _safe(name: str) -> str:
    """Return a file name without characters that could lead to another folder; its rank and kind stay readable."""
    return re.sub(r"[^\w.-]", "_", name).lstrip(".") or "dropped"


def answer(start_response: StartResponse, content: dict[str, str], status: str = "200 OK") -> Iterable[bytes]:
    start_response(status, [("Content-Type", "application/json"), ("X-Content-Type-Options", "nosniff")])
    return [json.dumps(content).encode()]


THREADS = 8
MOST_CONNECTIONS = 512
"""The most open connections: a browser holds six, and other clients may connect without sending anything."""
REQUEST_S = 20
"""The seconds in which a connection without the token must send a whole request, header and body."""
SILENCE_S = 30
"""The seconds without a byte after which a connection is closed; a request that is being answered may take longer."""
_HEADER_BYTES = 64 << 10
STRANGER_BYTES = 4 << 10
"""The longest body of a request without the token, so that strangers cannot fill the disk of this machine."""


@dataclass(frozen=True)
class Server:
    """A waitress server; `sockets` maps file descriptors to the server's listeners and open connections."""

    inner: BaseWSGIServer | MultiSocketServer
    sockets: dict[int, Any]

    @property
    def listeners(self) -> list[BaseWSGIServer]:
        """The listening servers; there are two if the host name has two addresses, as `localhost` may have."""
        return [one for one in self.sockets.values() if isinstance(one, BaseWSGIServer)]

    @property
    def port(self) -> int:
        listening_socket = self.listeners[0].socket
        assert listening_socket is not None
        return int(listening_socket.getsockname()[1])

    def run(self) -> None:
        """Answer requests until SystemExit or KeyboardInterrupt is raised, or until another thread calls `stop`."""
        self.inner.run()

    def stop(self) -> None:
        """Stop `run`, which runs in another thread: close all connections, and let it return."""
        for listener in self.listeners:
            listener.task_dispatcher.shutdown()
        # Closed from here, a connection that the other thread is accepting would be left, and keep it running.
        trigger: Any = self.listeners[0].trigger  # an int, according to its stubs
        # Where another pull comes in between, that thread has closed everything by the time this one would wake it.
        with suppress(OSError):
            trigger.pull_trigger(self.close)

    def close(self) -> None:
        """Close the listeners and all connections; while `run` is running, only its own thread may call this."""
        for channel in list(self.sockets.values()):
            if isinstance(channel, HTTPChannel):
                channel.handle_close()
        close_all(self.sockets)


def listening(host: str, port: int, app: AccessControl) -> Server:
    """Return a waitress server that listens on a host and port.

    Raises:
        UsageProblem: The port is in use, or the host name does not belong to this machine.
    """
    try:
        return started(app, host=host, port=port)
    except (OSError, ValueError, OverflowError) as error:
        why = f"cannot listen on {host}, port {port}"
        raise UsageProblem(why, "choose another with --port, or 0 for a free one") from error


@contextmanager
def listening_on_socket(path: Path, app: AccessControl) -> Iterator[Server]:
    """Yield a server that listens on a Unix socket of mode 0600; the socket is removed afterwards.

    Raises:
        UsageProblem: Another server listens there, another file has this path, or the folder cannot be written.
    """
    if _is_listening(path):
        raise UsageProblem(f"{path}: a server listens there already", "choose another path for --socket")
    # Between `bind` and `chmod` the mode is that of the umask: nobody may connect in that moment.
    mask = os.umask(0o177)
    try:
        server = started(app, unix_socket=str(path), unix_socket_perms="600")
    except (OSError, ValueError) as error:
        hint = "give a short path (at most 107 bytes) in a folder of yours, where no other file is"
        raise UsageProblem(f"{path}: cannot listen there: {error}", hint) from error
    finally:
        os.umask(mask)
    try:
        yield server
    finally:
        path.unlink(missing_ok=True)


def _is_listening(path: Path) -> bool:
    """Return whether a process accepts connections on the Unix socket at `path`.

    If a killed server has left its socket file behind, the result is False.
    """
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return False
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(path))
    except OSError:
        return False
    return True


def started(app: AccessControl, **place: Any) -> Server:
    """Return a waitress server for the app; `place` has waitress's keyword arguments for the address to listen on.

    Raises:
        OSError: The server cannot listen on this address.
        ValueError: The address is not valid.
    """
    # Its warnings would go to the terminal, in the middle of what the user runs there.
    logging.getLogger("waitress").setLevel(logging.CRITICAL)
    waited_for: dict[int, Any] = {}
    try:
        inner = create_server(
            app,
            map=waited_for,
            **place,
            threads=THREADS,
            connection_limit=most_connections() + 8,  # `_make_room` keeps their number lower
            channel_timeout=SILENCE_S,
            max_request_header_size=_HEADER_BYTES,
            max_request_body_size=MOST_BYTES,
            # `select` cannot watch descriptors from 1024 on.
            asyncore_use_poll=True,
            ident=None,
        )
    except BaseException:
        close_all(waited_for)  # waitress opens a pipe before it listens
        raise
    server = Server(inner, waited_for)
    for listener in server.listeners:
        listener.channel_class = _channel_for(app.door.admits)
    return server


def most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST_CONNECTIONS if soft == resource.RLIM_INFINITY else max(16, min(MOST_CONNECTIONS, soft // 2))


def _channel_for(admits: Callable[[str], bool]) -> type[HTTPChannel]:
    """Return a connection class for waitress that serves holders of the token first; `admits` knows their cookies.

    Long request bodies need the token. A connection that has not shown it must send each request within `REQUEST_S`,
    however often it sends a byte. If there are too many connections, a new one takes the place of the oldest one that
    has not shown the token, of the peer that has most of these: strangers can only push out each other.
    """

    class Parser(HTTPRequestParser):
        def __init__(self, adj: Any, channel: "Channel") -> None:
            super().__init__(adj)
            self.channel = channel

        def parse_header(self, header_plus: bytes) -> None:
            super().parse_header(header_plus)
            if admits(self.headers.get("COOKIE", "")):
                self.channel.is_admitted = True
                return
            # All connections share this object: a change in place would limit admitted requests, too.
            self.adj = copy.copy(self.adj)
            self.adj.max_request_body_size = STRANGER_BYTES

    class Channel(HTTPChannel):
        def __init__(self, server: Any, *arguments: Any, **named: Any) -> None:
            # Before waitress's own code, which lets the loop see the connection.
            self.is_admitted = False
            self.began: float | None = None
            self.parser_class = partial(Parser, channel=self)  # type: ignore[assignment]  # waitress calls it
            super().__init__(server, *arguments, **named)
            _make_room(server, self)

        def received(self, data: bytes) -> Any:
            if self.began is None:
                self.began = time.monotonic()
            result = super().received(data)
            if self.request is None:
                self.began = None
            elif not self.is_admitted and time.monotonic() - self.began > REQUEST_S:
                self.will_close = True
            return result

    return Channel


def _make_room(server: Any, newest: HTTPChannel) -> None:
    """Close a connection if `newest` is one too many: of those without the token, the oldest of the busiest peer."""
    channels = list(server.active_channels.values())
    if len(channels) <= most_connections():
        return
    strangers = [c for c in channels if c is not newest and not getattr(c, "is_admitted", True) and not c.requests]
    peers = Counter(peer_of(channel) for channel in strangers)
    if strangers:
        busiest = peers.most_common(1)[0][0]
        oldest = min((c for c in strangers if peer_of(c) == busiest), key=lambda channel: channel.creation_time)
        oldest.handle_close()


def peer_of(channel: Any) -> str:
    return str(channel.addr[0] if isinstance(channel.addr, tuple) else channel.addr)
