"""What the app can show, called its subject: a run and its report, or a comparison of runs."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from textual.widget import Widget

from analyzers import compare, parity
from analyzers.report import Report
from analyzers.run import Run
from analyzers.store import Options
from workbench.ask import JOINED, PARITY, ROOMS, ask, limited_to
from workbench.present.room_data import room_data
from workbench.tui.panes.compare import ComparePane
from workbench.tui.panes.config import ConfigPane
from workbench.tui.panes.hang import HangPane
from workbench.tui.panes.home import HomePane
from workbench.tui.panes.home_picture import comparison_pictures, home_pictures
from workbench.tui.panes.logs import LogsPane
from workbench.tui.panes.memory import MemoryPane
from workbench.tui.panes.parity import BisectPane, ParityPane
from workbench.tui.panes.steps import StepsPane
from workbench.tui.panes.trace import TracePane


class Subject(Protocol):
    """Interface of what the app can show: a run, some files of a run, or a comparison of runs."""

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views, in order."""

    @property
    def first_view(self) -> str:
        """The name of the view that is shown first, if it has data."""

    @property
    def runs(self) -> tuple[Run, ...]:
        """The runs that the app shows: a single run, or two runs to compare."""

    @property
    def command(self) -> str:
        """The command line of `workbench` that shows the same content."""

    def ask(self) -> Report[object]:
        """Compute and return the report; this may take minutes."""

    def panes(self, report: Report[object]) -> Mapping[str, Widget]:
        """Return {name of a view: its pane} for the views that have data."""


@dataclass(frozen=True)
class RunSubject:
    """A run, or some of its files, with the analyzer named `room`; the view of this analyzer is shown first.

    The analyzer `incident` combines all others and has no view of its own. In this case the home view is shown first.
    """

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
        panes: dict[str, Widget] = {"home": HomePane(report, self.runs, home_pictures(report, run, options))}
        if data.memory:
            panes["memory"] = MemoryPane(data.memory, run, options)
        if data.hang:
            panes["hang"] = HangPane(data.hang, run, options)
        if data.trace:
            panes["trace"] = TracePane(data.trace, run, options, report.verdict.ranks)
        if data.steps:
            panes["steps"] = StepsPane(data.steps, run, options, report.verdict.ranks)
        if data.logs:
            panes["logs"] = LogsPane(data.logs, report.findings, report.verdict.ranks)
        if manifest := run.manifest():
            panes["config"] = ConfigPane(manifest)
        return panes


@dataclass(frozen=True)
class ComparisonSubject:
    """Two runs, or two files of the same kind, to compare."""

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
        with limited_to(self.options, self.a, self.b):
            return compare.analyze(self.a, self.b, self.options)

    def panes(self, report: Report[object]) -> Mapping[str, Widget]:
        data = room_data(report).compare
        assert data is not None, "a comparison has the data of one"
        home = HomePane(report, self.runs, comparison_pictures(data))
        return {"home": home, "compare": ComparePane(data, (self.a, self.b), self.options)}


@dataclass(frozen=True)
class ParitySubject:
    """A folder that `workbench parity` has written: runs of the same training on several meshes, to compare."""

    run: Run
    options: Options

    @property
    def views(self) -> tuple[str, ...]:
        return ("home", PARITY)

    @property
    def first_view(self) -> str:
        return PARITY

    @property
    def runs(self) -> tuple[Run, ...]:
        return (self.run,)

    @property
    def command(self) -> str:
        return f"workbench inspect {quoted(self.run.root)}"

    def ask(self) -> Report[object]:
        return ask(PARITY, self.run, self.options)

    def panes(self, report: Report[object]) -> Mapping[str, Widget]:
        data = room_data(report).parity
        assert data is not None, "a comparison of meshes has their data"
        return {"home": HomePane(report, self.runs), PARITY: ParityPane(data)}


@dataclass(frozen=True)
class BisectSubject:
    """Two recorded runs whose first difference the app shows.

    `tolerance` is the largest difference that is ignored; None means a tolerance that depends on the dtype.
    """

    a: Run
    b: Run
    options: Options
    tolerance: float | None = None

    @property
    def views(self) -> tuple[str, ...]:
        return ("home", "bisect")

    @property
    def first_view(self) -> str:
        return "bisect"

    @property
    def runs(self) -> tuple[Run, ...]:
        return self.a, self.b

    @property
    def command(self) -> str:
        allowed = "" if self.tolerance is None else f" --tolerance {self.tolerance}"
        return f"workbench bisect {quoted(self.a.root)} {quoted(self.b.root)}{allowed}"

    def ask(self) -> Report[object]:
        with limited_to(self.options, self.a, self.b):
            return parity.bisect(self.a, self.b, self.options, self.tolerance)

    def panes(self, report: Report[object]) -> Mapping[str, Widget]:
        data = room_data(report).bisect
        assert data is not None, "a bisection has the data of one"
        return {"home": HomePane(report, self.runs), "bisect": BisectPane(data, (self.a, self.b), self.options)}


def subject_of(run: Run, room: str, options: Options) -> Subject:
    """Return what the app shows: a run with the analyzer named `room`, or a comparison of runs.

    If `room` is `PARITY`, `run` is a folder with several runs, written by `workbench parity`; these are compared.
    """
    return ParitySubject(run, options) if room == PARITY else RunSubject(run, room, options)


def quoted(path: Path) -> str:
    return shlex.quote(str(path))
