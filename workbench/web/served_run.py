"""The run that the dashboard serves: its files, its report, and the data of each analyzer."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from analyzers.memory import MemoryData
from analyzers.memory.model import Device
from analyzers.parity import ParityData
from analyzers.report import Report
from analyzers.rooms import ask
from analyzers.run import Artefact, Kind, Run
from analyzers.store import Options
from analyzers.traces import TraceData
from workbench.present.table import short_names
from workbench.present.tables.memory import worst_first
from workbench.rooms import data_by_room

Data = TypeVar("Data")


@dataclass(frozen=True)
class ServedRun:
    """A run and its report, created once when the server starts; pages only read it.

    If two runs are compared, `run` is the first run and `other` the second. `trusted` says whether pages may show
    source files that the run mentions. It is True only for a run opened on the command line: an uploaded file could
    mention any file of this machine.
    """

    run: Run
    options: Options
    report: Report[object]
    other: Run | None = None
    trusted: bool = True

    @cached_property
    def rooms(self) -> Mapping[str, object]:
        return data_by_room(self.report)

    def data(self, kind: type[Data]) -> Data | None:
        return next((data for data in self.rooms.values() if isinstance(data, kind)), None)

    @cached_property
    def devices(self) -> list[Device]:
        """The devices in the report's memory snapshots, the one to look at first; empty without snapshots."""
        return worst_first(data.devices) if (data := self.data(MemoryData)) else []

    @cached_property
    def manifest(self) -> dict[str, object]:
        """The content of `run.json`; empty without this file, and for a parity report, which covers several runs."""
        return {} if self.data(ParityData) else dict(self.run.manifest())

    @property
    def name(self) -> str:
        """The path of the run's folder, or of both folders in a comparison."""
        return f"{self.run.root}, {self.other.root}" if self.other else str(self.run.root)

    @property
    def short_name(self) -> str:
        roots = [run.root for run in (self.run, self.other) if run]
        return ", ".join(short_names(roots))

    def snapshot(self, path: str) -> Artefact:
        """Return the memory snapshot with this path; the path comes from the report or from a page's address.

        Raises:
            KeyError: The run has no such snapshot. So a page's address cannot open other files.
        """
        # A lookup among the files of the run, so that no address can open any other file.
        return {str(artefact.path): artefact for artefact in self.run.of(Kind.SNAPSHOT)}[path]

    @cached_property
    def traces(self) -> list[Artefact]:
        """The trace files that could be read, in the order of the report."""
        # A file has an account for each device: its path must be listed once.
        paths = dict.fromkeys(account.path for account in data.ranks) if (data := self.data(TraceData)) else {}
        known = {str(artefact.path): artefact for artefact in self.run.artefacts}
        return [known[path] for path in paths]


def served_run(run: Run, room: str, options: Options, *, trusted: bool = True) -> ServedRun:
    return ServedRun(run, options, ask(room, run, options), trusted=trusted)
