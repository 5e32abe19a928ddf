"""Files that users drop onto the page: each set of files is opened as a separate dashboard.

`PUT /drop/SET/NAME` stores a file. `POST /drop/SET` analyses the files of a set, and returns the address of their
dashboard, `/open/SET/`. The files are removed when the server ends.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import IO
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from werkzeug.exceptions import HTTPException
from werkzeug.wsgi import get_input_stream

from analyzers.errors import InputError, WorkbenchError
from analyzers.rooms import room_for
from analyzers.run import discover
from analyzers.store import Options
from workbench.web.access import refuse
from workbench.web.app import make_app
from workbench.web.served_run import served_run

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
