"""Profiler traces -> `Report[TraceData]`: where the time of a step goes, on each rank and between them."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from analyzers import store
from analyzers.report import Finding, Report, Verdict, merged, ranked, status_of, tool_version
from analyzers.run import Artefact, selected, unreadable
from analyzers.traces.across.clocks import Clock
from analyzers.traces.across.rank_waits import (
    AxisWaits,
    CollectiveWait,
    GroupWaits,
    RankComparison,
    RankWaits,
    axis_waits,
    compare_ranks,
)
from analyzers.traces.across.stragglers import Straggler, straggler_findings, stragglers
from analyzers.traces.findings.findings import findings_of
from analyzers.traces.findings.memory import memory_findings
from analyzers.traces.loading import Recording, load, open_trace
from analyzers.traces.structs import CriticalPart, RankTrace
from analyzers.words import duration_ns, rank_names, share

SCHEMA = "workbench.trace/1"


class TraceData(msgspec.Struct, frozen=True, kw_only=True):
    """`data` of a trace report.

    What follows `ranks` needs collectives that several ranks recorded, and is empty without; `groups`, `axes`,
    `meetings` and `clocks` are of the recordings at the last step, `waits` and `stragglers` of all. `critical` is of
    the last profiled step of the first of `ranks`, and empty unless it was asked for.
    """

    ranks: list[RankTrace]
    waits: list[RankWaits]
    stragglers: list[Straggler]
    groups: list[GroupWaits]
    axes: list[AxisWaits]
    meetings: list[CollectiveWait]
    clocks: list[Clock]
    critical: list[CriticalPart] = []


def analyze(artefacts: Sequence[Artefact], options: store.Options | None = None) -> Report[TraceData]:
    """What the traces say, all together. A file that cannot be read becomes a finding.

    Raises:
        InputError: None of them can be read, or none is of the chosen rank and step.
    """
    options = options or store.Options()
    chosen = selected(artefacts, options.rank, options.step)
    good, bad = load(chosen, options)
    if not good:
        raise bad[0][1]
    accounts = [recording.account for recording in good]
    joined = by_step(good)
    slow = stragglers(joined)
    findings = [unreadable(artefact, "trace", error) for artefact, error in bad]
    # What several accounts share is told in the words of the first; the verdict goes on with the longest.
    longest_first = sorted(accounts, key=lambda account: -account.span_ns)
    findings += [finding for one in longest_first for finding in (*findings_of(one), *memory_findings(one))]
    findings = ranked(merged(findings + list(straggler_findings(slow, added_up(joined)))))
    last = joined[-1] if joined else None
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=[a.given() for a in chosen],
        verdict=verdict(accounts, findings, last.clocks if last else []),
        findings=findings,
        data=TraceData(
            ranks=accounts,
            waits=added_up(joined),
            stragglers=slow,
            groups=last.groups if last else [],
            axes=axis_waits(last.groups) if last else [],
            meetings=last.meetings if last else [],
            clocks=last.clocks if last else [],
        ),
    )


def with_critical_path(report: Report[TraceData], options: store.Options | None = None) -> Report[TraceData]:
    """The same report with `data.critical`."""
    parts = critical_parts(report.data.ranks[0], options)
    return msgspec.structs.replace(report, data=msgspec.structs.replace(report.data, critical=parts))


def critical_parts(account: RankTrace, options: store.Options | None = None) -> list[CriticalPart]:
    """What the last step of an account consists of along its critical path; of the whole recording without steps."""
    from analyzers.traces.critical.path import critical_path, held

    trace = open_trace(Path(account.path), options)
    number = [one["device"] for one in trace.columns.meta["accounts"]].index(account.device)
    step, window = None, None
    if trace.steps:
        step, start, end = trace.steps[-1]
        window = start - trace.origin, end - trace.origin
    path = critical_path(trace, number, window)
    return [CriticalPart(rank=account.rank, device=account.device, step=step, **part) for part in held(path)]


def by_step(good: Sequence[Recording]) -> list[RankComparison]:
    """The recordings of each step of the run joined, in order of step, where they can be."""
    steps = defaultdict[int, list[Recording]](list)
    for recording in good:
        steps[-1 if recording.artefact.step is None else recording.artefact.step].append(recording)
    return [found for step in sorted(steps) if (found := compare_ranks(steps[step]))]


def added_up(joined: Sequence[RankComparison]) -> list[RankWaits]:
    """The waits of each rank, summed over the recordings at different steps of the run."""
    total: dict[int, RankWaits] = {}
    for row in (row for one in joined for row in one.waits):
        total[row.rank] = plus(total[row.rank], row) if row.rank in total else row
    return [total[rank] for rank in sorted(total)]


def plus(one: RankWaits, other: RankWaits) -> RankWaits:
    summed = {name: getattr(one, name) + getattr(other, name) for name in RankWaits.__struct_fields__ if name != "rank"}
    return msgspec.structs.replace(one, **summed)


def verdict(accounts: Sequence[RankTrace], findings: Sequence[Finding], clocks: Sequence[Clock]) -> Verdict:
    """A straggler first, else the largest loss of the longest account, else trouble with memory, else healthy."""
    named = {finding.id: finding for finding in findings}
    missing = lacking(accounts, clocks)
    for name in ("straggler", "exposed_communication", "host_bound", "memory_near_limit", "memory_grows"):
        if found := named.get(f"trace.{name}"):
            return Verdict(
                status=status_of(findings),
                kind=name,
                ranks=found.ranks,
                sentence=f"{found.title[:1].lower()}{found.title[1:]}; {division(accounts)}",
                confidence=found.confidence,
                missing=missing,
            )
    worked = any(account.device_events for account in accounts)
    return Verdict(
        status=status_of(findings),
        kind="healthy" if worked else "unknown",
        sentence=division(accounts) if worked else "the trace has no work in it",
        confidence=0.8 if worked else 0.0,
        missing=missing,
    )


def division(accounts: Sequence[RankTrace]) -> str:
    """How the longest account divides, as half a sentence."""
    a = max(accounts, key=lambda account: account.span_ns)
    name = "the trace" if a.rank is None else f"rank {a.rank}"
    return (
        f"{name} computes {share(a.compute_ns, a.span_ns)} of {duration_ns(a.span_ns)}, communicates without computing"
        f" {share(a.exposed_communication_ns, a.span_ns)}, idles {share(a.idle_ns, a.span_ns)}"
    )


def lacking(accounts: Sequence[RankTrace], clocks: Sequence[Clock]) -> list[str]:
    """Evidence that would have made the verdict firmer."""
    apart = [clock.rank for clock in clocks if not clock.agrees]
    wanted = {
        f"collectives that tell the clock of {rank_names(apart)}: there are none, or they contradict each other": apart,
        "step marks (call profiler.step() in the loop)": any(not account.steps for account in accounts),
        "device events": any(account.source == "cpu" for account in accounts),
        "the traces of the other ranks": len({account.rank for account in accounts})
        < max((account.world_size or 1 for account in accounts), default=1),
    }
    return [what for what, lacks in wanted.items() if lacks]
