"""Profiler traces -> `Report[TraceData]`: where the time of a step goes, on each rank and between them."""

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from analyzers import store
from analyzers.errors import WorkbenchError
from analyzers.report import Finding, Report, Verdict, merged, ranked, status_of, tool_version
from analyzers.run import Artefact, selected, unreadable
from analyzers.traces.accounts import describe
from analyzers.traces.findings import findings_of, millis, percent, straggler_findings
from analyzers.traces.model import RankTrace, RankWaits, Trace, TraceData
from analyzers.traces.waits import waits
from analyzers.traces.work import Work, works

SCHEMA = "workbench.trace/1"
READER = "analyzers.traces.read"


def analyze(artefacts: Sequence[Artefact], options: store.Options | None = None) -> Report[TraceData]:
    """What the traces say, all together. A file that cannot be read becomes a finding.

    Raises:
        InputError: None of them can be read, or none is of the chosen rank and step.
    """
    options = options or store.Options()
    chosen = selected(artefacts, options.rank, options.step)
    loaded = store.load_many([[artefact.path] for artefact in chosen], READER, options)
    pairs = list(zip(chosen, loaded, strict=True))
    bad = [(artefact, columns) for artefact, columns in pairs if isinstance(columns, WorkbenchError)]
    good = [Trace(artefact, columns) for artefact, columns in pairs if not isinstance(columns, WorkbenchError)]
    if not good:
        raise bad[0][1]
    done = [work for trace in good for work in works(trace)]
    accounts = [describe(work) for work in done]
    rows = waits_over_steps(done)
    findings = [unreadable(artefact, "trace", error) for artefact, error in bad]
    findings += [finding for account in accounts for finding in findings_of(account)]
    findings = ranked(merged(findings + list(straggler_findings(accounts, rows))))
    return Report(
        schema=SCHEMA,
        version=tool_version(),
        inputs=[a.given() for a in chosen],
        verdict=verdict(accounts, findings),
        findings=findings,
        data=TraceData(accounts, rows),
    )


def waits_over_steps(done: Sequence[Work]) -> list[RankWaits]:
    """The waits of each rank, added up over the recordings at different steps of the run."""
    by_step = defaultdict[int | None, list[Work]](list)
    for work in done:
        by_step[work.trace.artefact.step].append(work)
    total: dict[int, RankWaits] = {}
    for row in (row for same in by_step.values() for row in waits(same)):
        total[row.rank] = plus(total[row.rank], row) if row.rank in total else row
    return [total[rank] for rank in sorted(total)]


def plus(one: RankWaits, other: RankWaits) -> RankWaits:
    summed = {name: getattr(one, name) + getattr(other, name) for name in RankWaits.__struct_fields__ if name != "rank"}
    return msgspec.structs.replace(one, **summed)


def verdict(accounts: Sequence[RankTrace], findings: Sequence[Finding]) -> Verdict:
    """A straggler first, else the largest loss of the longest account, else healthy."""
    named = {finding.id: finding for finding in findings}
    missing = lacking(accounts)
    for name in ("straggler", "exposed_communication", "host_bound"):
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
    who = "the trace" if a.rank is None else f"rank {a.rank}"
    return (
        f"{who} computes {percent(a.compute_ns, a.span_ns)} of {millis(a.span_ns)}, communicates without computing"
        f" {percent(a.exposed_communication_ns, a.span_ns)}, idles {percent(a.idle_ns, a.span_ns)}"
    )


def lacking(accounts: Sequence[RankTrace]) -> list[str]:
    """Evidence that would have made the verdict firmer."""
    wanted = {
        "step marks (call profiler.step() in the loop)": any(not account.steps for account in accounts),
        "device events": any(account.source == "cpu" for account in accounts),
        "the traces of the other ranks": len({account.rank for account in accounts})
        < max((account.world_size or 1 for account in accounts), default=1),
    }
    return [what for what, lacks in wanted.items() if lacks]
