"""Serving the dashboard on the loopback interface."""

import getpass
import logging
import platform
import webbrowser
from pathlib import Path

from werkzeug.serving import make_server

from analyzers.run import Run
from analyzers.store import Options
from workbench.ask import find, room_for
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.web.app import make_app
from workbench.web.view import view_of

LOOPBACK = "127.0.0.1"


def serve(path: Path, port: int, *, browse: bool) -> None:
    """Serve whatever lies at `path` until interrupted."""
    run = find([path])
    serve_report(run, room_for(run), Options(), port, browse=browse)


def serve_report(run: Run, room: str, options: Options, port: int = 0, *, browse: bool = False) -> None:
    """Serve one report; port 0 takes a free one."""
    app = make_app(view_of(run, room, options))
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    try:
        server = make_server(LOOPBACK, port, app.server, threaded=True)
    except (OSError, SystemExit) as error:
        raise UsageProblem(f"port {port} is taken", "choose another with --port, or 0 for a free one") from error
    url = f"http://{LOOPBACK}:{server.port}/{room if room != 'incident' else ''}"
    note(f"serving {run.root} at {url}  (ctrl+c ends)")
    note(f"from another machine: ssh -L {server.port}:{LOOPBACK}:{server.port} {getpass.getuser()}@{platform.node()}")
    if browse:
        webbrowser.open(url)
    server.serve_forever()
