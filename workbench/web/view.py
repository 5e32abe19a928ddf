"""What a page draws from: one run, its report, and the part of it that each room found."""

from dataclasses import dataclass
from typing import Any

from analyzers.report import Report
from analyzers.run import Artefact, Kind, Run
from analyzers.store import Options
from workbench.ask import ask, parts


@dataclass(frozen=True)
class View:
    """Made once when the server starts; pages only read it."""

    run: Run
    options: Options
    report: Report[Any]
    parts: dict[str, Any]

    def snapshot(self, path: str) -> Artefact | None:
        """The snapshot that a page speaks of: one of the run's own, whatever the address bar says."""
        return next((artefact for artefact in self.run.of(Kind.SNAPSHOT) if str(artefact.path) == path), None)


def view_of(run: Run, room: str, options: Options) -> View:
    report = ask(room, run, options)
    return View(run, options, report, parts(report))
