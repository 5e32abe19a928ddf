"""The server of the dashboard: on loopback, or for others who have the token."""

import getpass
import logging
import platform
import secrets
import tempfile
import webbrowser
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from werkzeug.serving import BaseWSGIServer, make_server

from analyzers.run import Run
from analyzers.store import Options
from workbench.ask import JOINED, find_run, room_for
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.web.access import AccessControl
from workbench.web.app import make_app
from workbench.web.served_run import ServedRun, served_run
from workbench.web.uploads import Uploads

LOOPBACK = "127.0.0.1"
TOKEN_BYTES = 18


@dataclass(frozen=True)
class Place:
    """Where to listen; port 0 takes a free one. `browse`: open the page in a browser."""

    host: str = LOOPBACK
    port: int = 0
    browse: bool = False

    @property
    def is_private(self) -> bool:
        """Whether only this machine can connect."""
        return self.host in (LOOPBACK, "localhost", "::1")


def serve(path: Path, place: Place) -> None:
    """Serve whatever lies at `path` until interrupted."""
    run = find_run([path])
    serve_report(run, room_for(run), Options(), place)


def serve_report(run: Run, room: str, options: Options, place: Place | None = None) -> None:
    """Serve the report of one room on its page."""
    serve_view(served_run(run, room, options), room if room != JOINED else "", place)


def serve_view(served: ServedRun, page: str = "", place: Place | None = None) -> None:
    """Serve a run, and what is dropped onto its page."""
    place = place or Place()
    token = None if place.is_private else secrets.token_urlsafe(TOKEN_BYTES)
    # A line for every request would bury what the user runs in the same terminal.
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="workbench-") as folder:
        server = listening(place, assembled(served, Path(folder), token))
        announce(served.run, page, server, place, token)
        server.serve_forever()


def assembled(served: ServedRun, folder: Path, token: str | None = None) -> AccessControl:
    """Return all that is served: the dashboard of `served`, those of dropped files, and access control before both."""
    runs = zip("ab", (served.run, served.other), strict=True) if served.other else ()
    beside = {name: Later(partial(dashboard, run, name, served.options)) for name, run in runs if run}
    return AccessControl(Uploads(make_app(served).server, folder, served.options, beside, trusted=token is None), token)


def dashboard(run: Run, name: str, options: Options) -> WSGIApplication:
    """Return the web application that shows one run of a comparison, served below a path of its own."""
    app: WSGIApplication = make_app(served_run(run, room_for(run), options), f"/open/{name}/").server
    return app


class Later:
    """A WSGI application that is made at its first request, as reading a run takes time."""

    def __init__(self, make: Callable[[], WSGIApplication]) -> None:
        self._make, self._lock = make, Lock()
        self._made: WSGIApplication | None = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request; the first one makes the application."""
        # Two requests at once would read the run twice.
        with self._lock:
            if self._made is None:
                self._made = self._make()
        return self._made(environ, start_response)


def listening(place: Place, app: AccessControl) -> BaseWSGIServer:
    """Return a server that listens.

    Raises:
        UsageProblem: The port is taken, or the host is not of this machine.
    """
    try:
        return make_server(place.host, place.port, app, threaded=True)
    # Werkzeug itself exits when a port is taken, with a message of its own.
    except (OSError, SystemExit) as error:
        why = f"cannot listen on {place.host}, port {place.port}"
        raise UsageProblem(why, "choose another with --port, or 0 for a free one") from error


def announce(run: Run, page: str, server: BaseWSGIServer, place: Place, token: str | None) -> None:
    """Print where the page is."""
    query = f"?token={token}" if token else ""
    url = f"http://{place.host}:{server.port}/{page}{query}"
    note(f"serving {run.root} at {url}  (Ctrl+C stops it)")
    if place.is_private:
        name = f"{getpass.getuser()}@{platform.node()}"
        note(f"from another machine: ssh -L {server.port}:{LOOPBACK}:{server.port} {name}")
    else:
        note("anybody who has this address can read the run; the connection is not encrypted")
    if place.browse:
        webbrowser.open(url)
