"""Where on the page the evidence of a finding is to be seen: one link leads there."""

from collections.abc import Mapping
from typing import Any

from analyzers.report import Finding
from workbench.evidence_link import EvidenceLink, evidence_link
from workbench.present.tables.memory import worst_first
from workbench.web.components.text import address
from workbench.web.pages.trace_events import traces
from workbench.web.served_run import ServedRun


def evidence(served: ServedRun, finding: Finding) -> str | None:
    """The address of what a finding rests on: page, rank, instant and part of the page."""
    at = evidence_link(finding)
    if at is None or at.room not in served.parts:
        return None
    query = QUERIES[at.room](served, at) if at.room in QUERIES else {}
    return f"{at.room}{address(query) if query else ''}{f'#{at.part}' if at.part else ''}"


def of_memory(served: ServedRun, at: EvidenceLink) -> Mapping[str, str]:
    """The device, and of a leak the instants between which it grew."""
    devices = worst_first(served.parts["memory"].devices)
    mine = [i for i, one in enumerate(devices) if at.rank in (None, one.rank)] or [0]
    which = next((i for i in mine if devices[i].step == at.step), mine[0])
    query = {"device": str(which)}
    if at.part != "changes" or not (steps := devices[which].steps):
        return query
    return query | {"entry": str(steps[-1].last_entry), "since": str(steps[0].last_entry)}


def of_hang(served: ServedRun, at: EvidenceLink) -> Mapping[str, str]:
    """The group that broke, and the rank that broke it."""
    culprits = [one for one in served.parts["hang"].culprits if at.rank in (None, *one.ranks)]
    named = next((one.group for one in culprits if one.group), None)
    group = {"group": named} if named else {}
    return group | ({} if at.rank is None else {"rank": str(at.rank)})


def of_trace(served: ServedRun, at: EvidenceLink) -> Mapping[str, str]:
    ranks = [one.rank for one in traces(served)]
    return {"file": str(ranks.index(at.rank))} if at.rank in ranks else {}


def of_steps(_served: ServedRun, at: EvidenceLink) -> Mapping[str, str]:
    return {} if at.rank is None else {"rank": str(at.rank)}


QUERIES: Mapping[str, Any] = {"memory": of_memory, "hang": of_hang, "trace": of_trace, "steps": of_steps}
