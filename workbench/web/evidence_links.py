"""The addresses of the pages that show the evidence of findings."""

from analyzers.report import Finding
from workbench.evidence_link import EvidenceLink, evidence_link
from workbench.present.tables.memory import worst_first
from workbench.web.query import Query, address
from workbench.web.served_run import ServedRun

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
