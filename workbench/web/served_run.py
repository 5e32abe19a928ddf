"""The run that the dashboard serves: its files, its report, and the data of each analyzer."""

from dataclasses import dataclass
from functools import cached_property

from analyzers.report import Finding, Report
from analyzers.run import Artefact, Kind, Run
from analyzers.store import Options
from workbench.ask import ask
from workbench.evidence_link import EvidenceLink, evidence_link
from workbench.present.names import short_names
from workbench.present.room_data import RoomData, room_data
from workbench.present.tables.memory import worst_first
from workbench.web.query import Query, address


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
    def rooms(self) -> RoomData:
        """The data of each analyzer in the report; an analyzer with its views is called a room, such as `memory`."""
        return room_data(self.report)

    @cached_property
    def manifest(self) -> dict[str, object]:
        """The content of `run.json`; empty without this file, and for a parity report, which covers several runs."""
        return {} if self.rooms.parity else dict(self.run.manifest())

    @property
    def name(self) -> str:
        """The path of the run's folder, or of both folders in a comparison."""
        return f"{self.run.root}, {self.other.root}" if self.other else str(self.run.root)

    @property
    def short_name(self) -> str:
        """The end of the run's path, for titles with little space; of two runs, the parts that differ."""
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
        paths = dict.fromkeys(account.path for account in self.rooms.trace.ranks) if self.rooms.trace else {}
        known = {str(artefact.path): artefact for artefact in self.run.artefacts}
        return [known[path] for path in paths]


def served_run(run: Run, room: str, options: Options, *, trusted: bool = True) -> ServedRun:
    """Analyse a run with the analyzer named `room`, and return the run with its report."""
    return ServedRun(run, options, ask(room, run, options), trusted=trusted)


# The addresses of the pages that show the evidence of findings.

_TABS = {
    "blocks": "segments",
    "ranks": "ranks",
    "operations": "operations",
    "stacks": "stacks",
    "waits": "ranks",
    "opportunities": "opportunities",
    "held": "memory",
}
"""{part of a page: the tab that contains it}; parts that are not listed are always visible."""


def evidence_address(served: ServedRun, finding: Finding) -> str | None:
    """Return the address of the page that shows the evidence of a finding; None if no page does."""
    at = evidence_link(finding)
    if at is None or at.room not in served.rooms.names:
        return None
    tab = {"tab": _TABS[at.part]} if at.part in _TABS else {}
    query = room_query(served, at) | tab
    return f"{at.room}{address(query) if query else ''}{f'#{at.part}' if at.part else ''}"


def room_query(served: ServedRun, at: EvidenceLink) -> Query:
    """Return the query parameters with which the page of the analyzer `at.room` shows the evidence of a finding."""
    queries = {"memory": memory_query, "hang": _hang_query, "trace": _trace_query, "steps": _steps_query}
    ask = {**queries, "logs": _logs_query, "bisect": _bisect_query}.get(at.room)
    return ask(served, at) if ask else {}


def memory_query(served: ServedRun, at: EvidenceLink) -> Query:
    """Return the query of the memory page for a finding, which selects the snapshot of the finding's rank and step.

    For a leak, the query also selects two instants to compare: the end of the first step in the snapshot and the end of
    the last step.
    """
    devices = worst_first(served.rooms.memory.devices) if served.rooms.memory else []
    same_rank = [i for i, device in enumerate(devices) if at.rank in (None, device.rank)] or [0]
    # A rank has a snapshot for each recorded step: the one of the finding shows what it is about.
    number = next((i for i in same_rank if devices[i].step == at.step), same_rank[0])
    query = {"device": str(number)}
    if at.part != "changes" or not (steps := devices[number].steps):
        return query
    return query | {"entry": str(steps[-1].last_entry), "since": str(steps[0].last_entry)}


def _hang_query(served: ServedRun, at: EvidenceLink) -> Query:
    """Return the query of the hang page for a finding: its rank, and the process group that this rank blocks."""
    culprits = served.rooms.hang.culprits if served.rooms.hang else []
    group = next((c.group for c in culprits if at.rank in (None, *c.ranks) and c.group), None)
    return ({"group": group} if group else {}) | _rank_query(at)


def _trace_query(served: ServedRun, at: EvidenceLink) -> Query:
    """Return the query of the trace page for a finding, which selects the trace file of the finding's rank."""
    ranks = [trace.rank for trace in served.traces]
    return {"file": str(ranks.index(at.rank))} if at.rank in ranks else {}


def _steps_query(_served: ServedRun, at: EvidenceLink) -> Query:
    """Return the query of the page of step times for a finding, which selects the finding's rank."""
    return _rank_query(at)


def _logs_query(served: ServedRun, at: EvidenceLink) -> Query:
    """Return the query of the page of text logs for a finding, which selects the first event of the finding's rank."""
    events = served.rooms.logs.events if served.rooms.logs else []
    number = next((i for i, event in enumerate(events) if at.rank is not None and event.rank == at.rank), None)
    return {} if number is None else {"event": str(number)}


def _bisect_query(_served: ServedRun, at: EvidenceLink) -> Query:
    """Return the query of the page of two recorded runs, which selects the step in which they differ."""
    return {} if at.step is None else {"step": str(at.step)}


def _rank_query(at: EvidenceLink) -> Query:
    """Return the query parameter `rank` with the rank of a finding; empty if the finding names no rank."""
    return {} if at.rank is None else {"rank": str(at.rank)}
