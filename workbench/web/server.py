"""Serve the dashboard to browsers that have its access token: on loopback, or with `--host` on another address."""

import getpass
import html
import platform
import signal
import tempfile
import webbrowser
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import NoReturn
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from analyzers.rooms import find_run, room_for
from analyzers.run import Run
from analyzers.store import Options
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.rooms import ANSWERED_FIRST
from workbench.web.app import make_app, prepare
from workbench.web.http_server import AccessControl, Door, Uploads, listening, listening_on_socket
from workbench.web.served_run import ServedRun, served_run

_LOOPBACK = "127.0.0.1"
_FAR_PORT = 8050
"""The port on the machine with the browser that ssh forwards to a Unix socket, if no port is given."""


@dataclass(frozen=True)
class Place:
    """The address to listen on; port 0 means any free port, and `browse` opens the page in a browser.

    If `socket` is given, the server listens on a Unix socket at this path, which other users of the machine cannot
    open. A browser on another machine then connects through ssh, which forwards its local port `port` to the socket.
    """

    host: str = _LOOPBACK
    port: int = 0
    browse: bool = False
    socket: Path | None = None

    @property
    def is_private(self) -> bool:
        return self.host in (_LOOPBACK, "localhost", "::1")

    def address(self, port: int) -> str:
        """Return the URL for a browser; `port` is the port on which the server listens, known once it has started."""
        everywhere = {"0.0.0.0", "::", ""}  # noqa: S104  # only to recognise it
        host = platform.node() if self.host in everywhere else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def serve(path: Path, place: Place) -> None:
    """Analyse the run or the files at `path`, and serve the dashboard until the user interrupts it."""
    run = find_run([path])
    serve_report(run, room_for(run), Options(), place)


def serve_report(run: Run, room: str, options: Options, place: Place | None = None) -> None:
    """Analyse a run with the analyzer named `room`, and serve the dashboard until the user interrupts it.

    The page of this analyzer is shown first, or the overview where the answer says more.
    """
    serve_view(served_run(run, room, options), "" if room in ANSWERED_FIRST else room, place)


def serve_view(served: ServedRun, page: str = "", place: Place | None = None) -> None:
    """Serve the dashboard of a run, and of files that users drop onto it, until the user interrupts it.

    `page` is the name of the page that is shown first.
    """
    serve_app(
        lambda sets, door, place: assembled(served, sets, door, private=place.is_private),
        served.run.root,
        page,
        place,
        partial(prepare, served, page),
    )


def serve_app(
    make: Callable[[Path, Door, Place], AccessControl],
    folder: Path,
    page: str = "",
    place: Place | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> NoReturn:
    """Serve an application until the user interrupts it; `folder` is the run that it shows.

    `make` creates the application. Its arguments are a folder for uploaded files, the secrets that open the
    application, and the address to listen on. `page` is the name of the first page. `meanwhile` is called while a
    browser starts.
    """
    place, door = place or Place(), Door()
    if place.socket and (place.browse or place.host != _LOOPBACK):
        raise UsageProblem("a Unix socket has no address that a browser opens", "leave out --host and --open")
    with ended_by_signals(), tempfile.TemporaryDirectory(prefix="workbench-", ignore_cleanup_errors=True) as own:
        sets = Path(own) / "dropped"
        sets.mkdir()
        app = make(sets, door, place)
        if place.socket:
            _run_on_socket(place.socket, app, folder, f"{page}?token={door.token}", place.port)
        server = listening(place.host, place.port, app)
        url = f"{place.address(server.port)}/{page}?token={door.token}"
        _announce(folder, url, server.port, place)
        if place.browse:
            open_browser(url, Path(own) / "open.html")
        # Requests wait in the socket: beside one, in a thread, modules would be imported twice at the same time.
        meanwhile()
        server.run()
        # It swallows what ended it.
        raise KeyboardInterrupt


def _run_on_socket(path: Path, app: AccessControl, folder: Path, page: str, port: int) -> NoReturn:
    """Serve on a Unix socket until the user interrupts it; print how another machine connects through ssh.

    ssh is needed because browsers cannot open Unix sockets.
    """
    port = port or _FAR_PORT
    with listening_on_socket(path, app) as server:
        note(f"serving {folder} on {path.resolve()}, which only you can open  (Ctrl+C stops it)")
        note(
            f"on the machine with your browser: ssh -N -L {port}:{path.resolve()} {getpass.getuser()}@{platform.node()}"
        )
        note(f"then open: http://{_LOOPBACK}:{port}/{page}")
        server.run()
    raise KeyboardInterrupt


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGHUP and SIGTERM into KeyboardInterrupt inside this context, so that uploaded files are removed."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, signal.SIGHUP]
    # `nohup` ignores a signal on purpose.
    before = {
        number: signal.signal(number, interrupt) for number in numbers if signal.getsignal(number) == signal.SIG_DFL
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def assembled(served: ServedRun, folder: Path, door: Door, *, private: bool = True) -> AccessControl:
    """Return the WSGI application of a server: several dashboards behind one check of the token.

    The first dashboard shows `served`. If `served` compares two runs, each run has a dashboard too. Further dashboards
    show the files that users drop onto the page; these files are stored in `folder`.
    """
    runs = zip("ab", (served.run, served.other), strict=True) if served.other else ()
    opened = f"{door.prefix}open/"
    beside = {name: Later(partial(dashboard, run, f"{opened}{name}/", served.options)) for name, run in runs if run}
    main = make_app(served, door.prefix).server
    return AccessControl(Uploads(main, folder, served.options, beside, door.prefix), door, private)


def dashboard(run: Run, prefix: str, options: Options) -> WSGIApplication:
    """Return the WSGI application for one of two compared runs, served under the URL path `prefix`."""
    app: WSGIApplication = make_app(served_run(run, room_for(run), options), prefix).server
    return app


class Later:
    """A WSGI application that is created by `make` at the first request, because reading a run takes time."""

    def __init__(self, make: Callable[[], WSGIApplication]) -> None:
        self._make, self._lock = make, Lock()
        self._made: WSGIApplication | None = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a WSGI request; the first one creates the application."""
        # Two requests at once would read the run twice.
        with self._lock:
            if self._made is None:
                self._made = self._make()
        return self._made(environ, start_response)


def _announce(folder: Path, url: str, port: int, place: Place) -> None:
    """Print the address of the page, and how to reach it from other machines."""
    note(f"serving {folder} at {url}  (Ctrl+C stops it)")
    note("whoever has this address can read the run; it holds the access token, so do not pass it on")
    tunnel = f"ssh -L {port}:{_LOOPBACK}:{port} {getpass.getuser()}@{platform.node()}"
    if place.is_private:
        note(f"from another machine: {tunnel}")
    else:
        note(
            "warning: plain HTTP, the connection is not encrypted: others on the network can read the token and the run"
        )
        note(f"safer: leave --host away, and on the other machine: {tunnel}")


def open_browser(url: str, page: Path) -> None:
    """Open `url` in a browser, by way of an HTML file that is written to `page` and redirects to `url`.

    If the browser were started with `url`, all users of the machine could see the token among the process's arguments.
    """
    page.touch(mode=0o600)
    page.write_text(f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">', encoding="utf-8")
    webbrowser.open(page.as_uri())
