"""Follows a job to its end without the terminal app: on a terminal a board in place, elsewhere lines."""

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from rich.console import Console
from rich.live import Live

from workbench.console import clean
from workbench.watch.job_state import Scene, Watching
from workbench.watch.log_lines import Narrator
from workbench.watch.status_text import board

POLL_S = 0.25
QUIET_S = 60.0
"""A job whose processes live elsewhere has ended, for all that can be seen, when nothing was written for so long."""


def follow(folder: Path) -> None:
    """Print what happens to a job until it ends."""
    watching, narrator = Watching(folder), Narrator()
    while True:
        scene = watching.look()
        for line in narrator.tell(scene):
            print(clean(line), flush=True)
        if over(scene):
            break
        time.sleep(POLL_S)
    print(f"{scene.now.status}; look at it with: workbench inspect {clean(folder)}")


def over(scene: Scene) -> bool:
    """Whether nothing more is to come."""
    if scene.asking:
        return False
    quiet = min((one.quiet_s for one in scene.now.ranks), default=0.0)
    return scene.now.ended or (scene.now.status == "unknown" and quiet > QUIET_S)


class Watcher:
    """Shows a job that this process launches from a thread of its own: `with Watcher(folder, since): ...`."""

    def __init__(self, folder: Path, since: float) -> None:
        self._watching = Watching(folder, since)
        self._stop = threading.Event()
        show = self._board if sys.stderr.isatty() else self._lines
        self._thread = threading.Thread(target=show, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(timeout=5)

    def _scenes(self) -> Iterator[Scene]:
        """Scenes until told to stop, and one after that, so that the last lines are seen."""
        while not self._stop.wait(POLL_S):
            yield self._watching.look()
        yield self._watching.look()

    def _lines(self) -> None:
        narrator = Narrator()
        for scene in self._scenes():
            for line in narrator.tell(scene):
                print(clean(line), file=sys.stderr, flush=True)

    def _board(self) -> None:
        console = Console(stderr=True, highlight=False)
        with Live(console=console, auto_refresh=False) as live:
            for scene in self._scenes():
                live.update(board(scene, *console.size), refresh=True)
