"""What the app shows: a run and its report, or two runs and their comparison."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from textual.widget import Widget

from analyzers import compare
from analyzers.report import Report
from analyzers.run import Run
from analyzers.store import Options
from workbench.ask import JOINED, ROOMS, ask
from workbench.present.room_data import room_data
from workbench.tui.panes.compare import ComparePane
from workbench.tui.panes.config import ConfigPane
from workbench.tui.panes.hang import HangPane
from workbench.tui.panes.home import HomePane
from workbench.tui.panes.logs import LogsPane
from workbench.tui.panes.memory import MemoryPane
from workbench.tui.panes.steps import StepsPane
from workbench.tui.panes.trace import TracePane


class Subject(Protocol):
    """The interface of what the app can show: a run, a file or a comparison of two."""

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views, in order."""

    @property
    def first_view(self) -> str:
        """The view that is shown first, if it has data."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that the app shows: one, or two that are compared."""

    @property
    def command(self) -> str:
        """The command line that shows the same."""

    def ask(self) -> Report[object]:
        """Return the report; this may take minutes."""

    def panes(self, report: Report[object]) -> Mapping[str, Widget]:
        """Return the views that have data, by name."""


@dataclass(frozen=True)
class RunSubject:
    """One run, or any files of one; the view of `room` is shown first, home where several rooms are joined."""

    run: Run
    room: str
    options: Options

    @property
    def views(self) -> tuple[str, ...]:
        # Logs come last, so that the numbers of the other views stay.
        return ("home", *(room for room in ROOMS if room != "logs"), "config", "logs")

    @property
    def first_view(self) -> str:
        return self.room

    @property
    def runs(self) -> tuple[Run, ...]:
        return (self.run,)

    @property
    def command(self) -> str:
        name = "inspect" if self.room in (JOINED, "memory", "logs") else self.room
        return f"workbench {name} {quoted(self.run.root)}"

    def ask(self) -> Report[object]:
        return ask(self.room, self.run, self.options)

    def panes(self, report: Report[object]) -> Mapping[str, Widget]:
        data, run, options = room_data(report), self.run, self.options
        panes: dict[str, Widget] = {"home": HomePane(report, self.runs)}
        if data.memory:
            panes["memory"] = MemoryPane(data.memory, run, options)
        if data.hang:
            panes["hang"] = HangPane(data.hang, run, options)
        if data.trace:
            panes["trace"] = TracePane(data.trace, run, options)
        if data.steps:
            panes["steps"] = StepsPane(data.steps, run, options)
        if data.logs:
            panes["logs"] = LogsPane(data.logs, report.findings)
        if manifest := run.manifest():
            panes["config"] = ConfigPane(manifest)
        return panes


@dataclass(frozen=True)
class ComparisonSubject:
    """Two runs, or two files of one kind."""

    a: Run
    b: Run
    options: Options

    @property
    def views(self) -> tuple[str, ...]:
        return ("home", "compare")

    @property
    def first_view(self) -> str:
        return "compare"

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.a, self.b

    @property
    def command(self) -> str:
        return f"workbench compare {quoted(self.a.root)} {quoted(self.b.root)}"

    def ask(self) -> Report[object]:
        return compare.analyze(self.a, self.b, self.options)

    def panes(self, report: Report[object]) -> Mapping[str, Widget]:
        data = room_data(report).compare
        assert data is not None, "a comparison has the data of one"
        return {"home": HomePane(report, self.runs), "compare": ComparePane(data, (self.a, self.b), self.options)}


def quoted(path: Path) -> str:
    return shlex.quote(str(path))
