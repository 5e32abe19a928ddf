"""Serve the live page of a job, and the dashboard of the files that the job has recorded so far."""

from collections.abc import Callable, Iterable
from pathlib import Path
from threading import Lock
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from analyzers.errors import WorkbenchError
from analyzers.run import discover
from analyzers.store import Options
from workbench.console import note
from workbench.watch import live_page
from workbench.watch.live_page import LiveJob
from workbench.watch.watched_job import JobWatcher
from workbench.web.access import AccessControl, Door
from workbench.web.app import finish, new_app
from workbench.web.server import Place, dashboard, serve_app
from workbench.web.uploads import Uploads

RECORDED = "recorded"
"""The name of the dashboard of the recorded files in its address, `open/recorded/`."""


def serve_live(folder: Path, place: Place) -> None:
    """Serve the live page of the job that writes to `folder` until the user interrupts it.

    The folder need not exist yet.
    """
    if not folder.is_dir():
        note(f"waiting for {folder}, which does not exist yet")
    serve_app(lambda sets, door, place: assembled(folder, sets, door, private=place.is_private), folder, "", place)


def assembled(folder: Path, sets: Path, door: Door, *, private: bool = True) -> AccessControl:
    """Return the WSGI application with the live page, and with dashboards of the recorded and of dropped files.

    Files that a user drops onto the page are stored in `sets`. `door` has the access token and the address prefix.
    """
    job = LiveJob(JobWatcher(folder))
    app = new_app(f"{folder} (live)", door.prefix)
    app.layout = live_page.layout(job)
    live_page.install(app, job)
    finish(app)
    recorded = Recorded(lambda: _recorded_dashboard(folder, f"{door.prefix}open/{RECORDED}/"), job.version)
    return AccessControl(Uploads(app.server, sets, Options(), {RECORDED: recorded}, door.prefix), door, private)


def _recorded_dashboard(folder: Path, prefix: str) -> WSGIApplication:
    """Return the dashboard of the files that a job has recorded so far, served under the URL path `prefix`."""
    return dashboard(discover(folder), prefix, Options())


class Recorded:
    """A WSGI application that `make` creates at the first page request, and again when there are new recorded files.

    The function `version` returns a value that changes when the job has recorded more.
    """

    def __init__(self, make: Callable[[], WSGIApplication], version: Callable[[], object]) -> None:
        self._make, self._version, self._lock = make, version, Lock()
        self._made: WSGIApplication | None = None
        self._made_of: object = None

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a WSGI request; if no recorded file can be analysed yet, say so with status 404."""
        is_page = environ.get("PATH_INFO", "/") == "/"
        try:
            with self._lock:
                # Only a page renews the dashboard: its many further requests should see the same recorded data.
                made = self._current() if is_page or self._made is None else self._made
        except WorkbenchError as error:
            start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{error.message}\n{error.hint}\n".encode()]
        return made(environ, start_response)

    def _current(self) -> WSGIApplication:
        # Read before the dashboard is made: what is recorded meanwhile then counts as newer.
        version = self._version()
        if self._made is None or version != self._made_of:
            self._made, self._made_of = self._make(), version
        return self._made
