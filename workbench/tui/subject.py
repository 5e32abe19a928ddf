"""What the app is about: a run and its report, or two runs and their comparison."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from textual.widget import Widget

from analyzers import compare
from analyzers.report import Report
from analyzers.run import Run
from analyzers.store import Options
from workbench.ask import JOINED, ask, parts
from workbench.tui.panes.compare import ComparePane
from workbench.tui.panes.config import ConfigPane
from workbench.tui.panes.hang import HangPane
from workbench.tui.panes.home import HomePane
from workbench.tui.panes.memory import MemoryPane
from workbench.tui.panes.steps import StepsPane
from workbench.tui.panes.trace import TracePane

ROOM_PANES: dict[str, type[MemoryPane | HangPane | TracePane | StepsPane]] = {
    "memory": MemoryPane,
    "hang": HangPane,
    "trace": TracePane,
    "steps": StepsPane,
}


class Subject(Protocol):
    """What the app asks of whatever it shows."""

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views, in order."""

    @property
    def wanted(self) -> str:
        """The view that comes first to sight, if there is something to show in it."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """What is read."""

    @property
    def command(self) -> str:
        """The command line that shows the same."""

    def ask(self) -> Report[Any]:
        """The report; takes its time."""

    def panes(self, report: Report[Any]) -> Mapping[str, Widget]:
        """The views that there is something to show in."""


@dataclass(frozen=True)
class RunSubject:
    """Whatever lies in one place. The view of `room` comes first; home where several rooms are joined."""

    run: Run
    room: str
    options: Options

    @property
    def views(self) -> tuple[str, ...]:
        return ("home", *ROOM_PANES, "config")

    @property
    def wanted(self) -> str:
        return self.room

    @property
    def runs(self) -> tuple[Run, ...]:
        return (self.run,)

    @property
    def command(self) -> str:
        name = "inspect" if self.room in (JOINED, "memory") else self.room
        return f"workbench {name} {quoted(self.run.root)}"

    def ask(self) -> Report[Any]:
        return ask(self.room, self.run, self.options)

    def panes(self, report: Report[Any]) -> Mapping[str, Widget]:
        found = {name: ROOM_PANES[name](data, self.run, self.options) for name, data in parts(report).items()}
        manifest = self.run.manifest()
        settings = {"config": ConfigPane(manifest)} if manifest else {}
        return {"home": HomePane(report, self.runs), **found, **settings}


@dataclass(frozen=True)
class ComparisonSubject:
    """Two runs, or two artefacts of one kind."""

    a: Run
    b: Run
    options: Options

    @property
    def views(self) -> tuple[str, ...]:
        return ("home", "compare")

    @property
    def wanted(self) -> str:
        return "compare"

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.a, self.b

    @property
    def command(self) -> str:
        return f"workbench compare {quoted(self.a.root)} {quoted(self.b.root)}"

    def ask(self) -> Report[Any]:
        return compare.analyze(self.a, self.b, self.options)

    def panes(self, report: Report[Any]) -> Mapping[str, Widget]:
        return {
            "home": HomePane(report, self.runs),
            "compare": ComparePane(report.data, (self.a, self.b), self.options),
        }


def quoted(path: Path) -> str:
    return shlex.quote(str(path))
