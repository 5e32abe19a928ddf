"""Tables of a trace report: a comparison of all ranks, then the details of the first rank."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from analyzers.traces.clocks import Clock
from analyzers.traces.model import Advice, CriticalPart, RankTrace
from analyzers.traces.rank_waits import AxisWaits, Change, CollectiveWait, GroupWaits, RankWaits, WhatIf
from analyzers.traces.report import TraceData
from analyzers.words import (
    duration_ns,
    figures,
    flops,
    kernel_name,
    percent,
    rank_names,
    rank_ranges,
    share,
    shortened,
    size,
)
from workbench.present.table import Table, table
from workbench.present.tables.trace_rank import NO_GROUP, detail_tables, memory_tables

if TYPE_CHECKING:
    import pandas as pd

_EVENTS, _PEERS = 12, 16

CALLS_BY = ("operator", "module", "function")
"""What a tree of calls can be grouped by."""


def trace_tables(data: TraceData) -> list[Table]:
    """Return tables of all ranks (parts of the time, waiting times), then tables with details of the first rank."""
    return [
        time_by_rank(data.ranks),
        opportunities(data.opportunities),
        _idle_causes([r for r in data.ranks if r.device is not None]),
        what_if(data.what_ifs, data.stages_unknown),
        *waiting_tables(data),
        bytes_sent(data.ranks),
        _clock_offsets([c for c in data.clocks if not c.same_host]),
        _floating_point_work([r for r in data.ranks if r.flops]),
        critical_path(data.critical),
        problems(data.ranks),
        *(section for rank in data.ranks[:1] for section in rank_tables(rank)),
    ]


def rank_tables(rank: RankTrace) -> list[Table]:
    return [*detail_tables(rank), *memory_tables(rank)]


def longest_events(blocks: "pd.DataFrame") -> Table:
    """Return a table of the longest events in a time window; `blocks` is the result of `traces.views.timeline`.

    Neighbouring short events share a row.
    """
    most = blocks.nlargest(_EVENTS, "busy_ns", keep="first")
    columns = (most[name] for name in ("name", "lane", "kind", "count", "start_ns", "busy_ns"))
    rows = (
        (shortened(name), lane, kind or "host", count, duration_ns(start), duration_ns(busy))
        for name, lane, kind, count, start, busy in zip(*columns, strict=True)
    )
    heads = "longest event | stream or thread | kind | events> | start> | duration>"
    return table("Longest events in view", heads, rows, _EVENTS)


def latest_arrivals(late: "pd.DataFrame") -> Table:
    """Return a table of collectives with the rank that arrived last, the collective with the latest arrival first.

    `late` is the result of `traces.views.lateness`.
    """
    last = late.loc[late.groupby("which")["late_ns"].idxmax()].nlargest(_EVENTS, "late_ns", keep="first")
    columns = (last[name] for name in ("which", "name", "rank", "late_ns", "start_ns"))
    rows = (
        (f"#{which}", name, rank, duration_ns(late_ns), duration_ns(start))
        for which, name, rank, late_ns, start in zip(*columns, strict=True)
    )
    return table("Latest arrivals", "collective | name | last rank> | late by> | arrived at>", rows, _EVENTS)


def time_by_rank(ranks: Sequence[RankTrace]) -> Table:
    heads = (
        "rank> | device> | step numbers> | recorded> | compute> | communication> | exposed communication> | memory> |"
        " idle>"
    )
    rows = (
        (
            *identity(r),
            duration_ns(r.span_ns),
            duration_ns(r.compute_ns),
            duration_ns(r.communication_ns),
            duration_ns(r.exposed_communication_ns),
            duration_ns(r.memory_ns),
            duration_ns(r.idle_ns),
        )
        for r in ranks
    )
    return table("Time by rank", heads, rows)


def opportunities(rows: Iterable[Advice]) -> Table:
    """Return a table of opportunities: the causes of lost time, and how much shorter a step would be without each.

    The savings may overlap, so they must not be added up.
    """
    cells = (
        (
            row.kind.replace("_", " "),
            rank_ranges(row.ranks) or "unknown",
            duration_ns(row.saved_ns),
            percent(row.saved_share),
            duration_ns(row.taken_ns),
            kernel_name(row.names[0].name) if row.names else "",
            row.check,
        )
        for row in rows
    )
    heads = "opportunity | ranks> | saved a step, at most> | share> | takes a step> | mostly | how to check"
    return table("Opportunities: what a step could save in the best case", heads, cells)


def identity(account: RankTrace) -> tuple[object, object, str]:
    return account.rank, "host" if account.device is None else account.device, step_numbers(account)


def step_numbers(account: RankTrace) -> str:
    """Return the numbers of the steps in a rank's trace as text, such as `5-7`; `account` is the trace's analysis.

    A run may have several traces of a rank, with different steps.
    """
    return rank_ranges(step.step for step in account.step_times) or "none"


def bytes_sent(ranks: Sequence[RankTrace]) -> Table:
    """Return a table of the bytes that each rank sends to each other rank by all-to-all collectives.

    The table covers only the process group that sends the most bytes, and has at most `_PEERS` columns.
    """
    # One matrix only: jobs have a group for each mesh axis, and the busiest is the one that costs time.
    most = max((e for r in ranks for e in r.exchanges), key=lambda e: sum(e.sent_bytes), default=None)
    members = len(most.sent_bytes[:_PEERS]) if most else 0
    peers = most.ranks[:_PEERS] if most and most.ranks else [f"member {i}" for i in range(members)]
    rows = (
        (r.rank, e.count, *(size(sent) for sent in e.sent_bytes[:_PEERS]))
        for r in ranks
        for e in r.exchanges
        if most and (e.group, e.ranks) == (most.group, most.ranks)
    )
    heads = " | ".join(["rank>", "all-to-alls>", *(f"to {peer}>" for peer in peers)])
    return table(f"Bytes sent by all-to-all in group {most.group_desc or most.group if most else ''}", heads, rows)


def _idle_causes(ranks: Sequence[RankTrace]) -> Table:
    causes = "host too late> | dependency> | launch latency> | unexplained> | blocking communication>"
    rows = (
        (
            *identity(r),
            duration_ns(r.idle_host_ns),
            duration_ns(r.idle_dependency_ns),
            duration_ns(r.idle_launch_ns),
            duration_ns(r.idle_unexplained_ns),
            duration_ns(r.blocking_communication_ns),
        )
        for r in ranks
    )
    return table("Why the device does not compute", f"rank> | device> | step numbers> | {causes}", rows)


def _floating_point_work(ranks: Sequence[RankTrace]) -> Table:
    """Return a table of each rank's floating-point operations per second, compared with the peak of its device.

    Only operators with recorded shapes count.
    """
    heads = (
        "rank> | device> | step numbers> | work> | recomputed> | rate> | peak rate (dense)> | counted> | MFU> | HFU>"
    )
    rows = (
        (
            *identity(r),
            flops(r.flops),
            share(r.recomputed_flops, r.flops),
            flops(r.flops_per_s, "/s"),
            f"{flops(r.peak_flops_per_s, '/s')} {r.peak_arithmetic}".strip(),
            percent(r.flops_coverage),
            percent(r.mfu),
            percent(r.hfu),
        )
        for r in ranks
    )
    title = "Work of matrix products, convolutions and attention (MFU leaves out recomputation, HFU counts it)"
    return table(title, heads, rows)


def problems(ranks: Sequence[RankTrace]) -> Table:
    rows = ((r.rank, "host" if r.device is None else r.device, problem) for r in ranks for problem in r.problems)
    return table("Problems with the recordings", "rank> | device> | problem", rows)


_CHANGES = {
    Change.RANK_AS_OTHERS: "rank {rank} works no longer than the others",
    Change.WITHOUT_PHASE: "{name} takes no time on any rank",
    Change.COLLECTIVE_TWICE_AS_FAST: "{name} transfers in half the time",
    Change.STAGE_AS_OTHERS: "stage {stage} ({ranks}) computes as fast as the others",
}


def what_if(answers: Iterable[WhatIf], stages_unknown: str = "") -> Table:
    """Return a table of how much shorter a step of all ranks would be after one change, such as without a phase.

    `stages_unknown` says why the answer about pipeline stages is unknown. It is empty if the answer is known, or if
    nobody asked for it.
    """
    rows: list[tuple[object, ...]] = [
        (
            _CHANGES[answer.change].format(
                rank=answer.rank, name=answer.name, stage=answer.stage, ranks=rank_names(answer.ranks)
            ),
            duration_ns(answer.saved_ns // answer.steps),
            duration_ns(answer.window_ns // answer.steps),
            share(answer.saved_ns, answer.window_ns),
        )
        for answer in answers
    ]
    if stages_unknown:
        rows.append((f"a pipeline stage computes as fast as the others: unknown, {stages_unknown}", None, None, None))
    return table("What if (the ranks played again)", "if | saves a step> | of> | share>", rows, _EVENTS)


def waiting_tables(data: TraceData, collectives: int = 5) -> list[Table]:
    """Return tables of how long ranks wait in collectives: by rank, mesh axis, process group and collective.

    The table by collective has at most `collectives` rows.
    """
    return [
        waiting(data.waits),
        _waiting_by_axis([a for a in data.axes if a.groups > 1]),
        _waiting_by_group(data.groups),
        _longest_waits(data.meetings, collectives),
    ]


def why_no_waits(accounts: Sequence[RankTrace]) -> str:
    """Return why a trace report has no numbers on how long ranks wait in collectives; `accounts` are its ranks.

    Call this function only for a report without such numbers.
    """
    ranks = sorted({account.rank for account in accounts if account.rank is not None})
    if not ranks:
        return "The traces do not tell their ranks, so their collectives cannot be compared."
    if len(ranks) == 1:
        return (
            f"Only {rank_names(ranks)} was traced: waiting shows in the traces of two or more ranks at the same step."
        )
    if not any(account.collectives for account in accounts):
        return f"None of the {len(ranks)} traced ranks recorded a collective, so none waited in one."
    return f"No two of the {len(ranks)} traced ranks recorded the same collective: trace all ranks at the same step."


def waiting(waits: Iterable[RankWaits]) -> Table:
    heads = "rank> | waits> | others wait for it> | arrives last> | more work than others> | saved without that work>"
    rows = (
        (
            w.rank,
            duration_ns(w.wait_ns),
            duration_ns(w.caused_ns),
            f"{w.last_arrivals} of {w.collectives}",
            duration_ns(w.excess_ns),
            share(w.saved_ns, w.window_ns),
        )
        for w in waits
    )
    return table("Waiting in collectives by rank", heads, rows)


def _waiting_by_axis(axes: Iterable[AxisWaits]) -> Table:
    """Return a table of the waiting time in collectives along each axis of the mesh.

    The process groups with the same description form an axis.
    """
    rows = (
        (
            a.desc,
            a.groups,
            a.collectives,
            duration_ns(a.wait_ns),
            duration_ns(a.transfer_ns),
            rank_ranges(a.worst_ranks),
            duration_ns(a.worst_wait_ns),
            a.worst_last_rank,
        )
        for a in axes
    )
    heads = "axis | groups> | collectives> | total waiting> | transfer> | worst group | its waiting> | for rank>"
    return table("Waiting by mesh axis", heads, rows, 8)


def _waiting_by_group(groups: Iterable[GroupWaits]) -> Table:
    rows = (
        (
            g.desc or g.name or NO_GROUP,
            rank_ranges(g.ranks),
            g.collectives,
            duration_ns(g.wait_ns),
            duration_ns(g.transfer_ns),
            g.last_rank,
            share(g.last_rank_share, 1),
        )
        for g in groups
        if g.wait_ns
    )
    heads = "group | ranks | collectives> | total waiting> | transfer> | mostly for rank> | share>"
    return table("Waiting by process group", heads, rows, 5)


def _longest_waits(meetings: Iterable[CollectiveWait], limit: int) -> Table:
    heads = "collective | group | step> | last rank> | late by> | total waiting> | transfer>"
    rows = (
        (
            m.name if m.sequence is None else f"{m.name} #{m.sequence}",
            m.group_desc or m.group or NO_GROUP,
            m.step,
            m.last_rank,
            duration_ns(m.late_ns),
            duration_ns(m.wait_ns),
            duration_ns(m.transfer_ns),
        )
        for m in meetings
        if m.wait_ns
    )
    return table("Collectives with the most waiting", heads, rows, limit)


def _clock_offsets(clocks: Iterable[Clock]) -> Table:
    """Return a table of the clock offsets between ranks on different hosts.

    The offsets are estimated from the times at which collectives end on each rank.
    """
    heads = "rank> | ahead by> | uncertainty> | drift> | residual> | collectives>"
    rows = (
        (
            c.rank,
            duration_ns(c.offset_ns),
            uncertainty(c),
            f"{figures(c.drift_ppm)} ± {figures(c.drift_error_ppm)} ppm" if c.drift_ppm else "none",
            duration_ns(c.residual_ns),
            c.collectives,
        )
        for c in clocks
    )
    return table("Clock offsets from the first rank", heads, rows, 8)


def uncertainty(clock: Clock) -> str:
    # Bounds that contradict each other mean that the clock drifted or stepped: no honest interval remains.
    if clock.low_ns is None or clock.high_ns is None or not clock.agrees:
        return duration_ns(None)
    return duration_ns(max(clock.high_ns - clock.offset_ns, clock.offset_ns - clock.low_ns))


def critical_path(parts: Sequence[CriticalPart]) -> Table:
    """Return a table of the parts of a step's critical path, and the largest saving if each were twice as fast."""
    whole = sum(part.path_ns for part in parts)
    rows = (
        (
            kernel_name(part.name) or "outside operators",
            part.kind,
            part.count,
            duration_ns(part.path_ns),
            share(part.path_ns, whole),
            duration_ns(part.saved_ns),
        )
        for part in parts
    )
    heads = "name | kind | pieces> | time on the path> | share> | saved at most if twice as fast>"
    step = f" of step {parts[0].step}" if parts and parts[0].step is not None else ""
    rank = f", rank {parts[0].rank}" if parts and parts[0].rank is not None else ""
    return table(f"Critical path{step}{rank}", heads, rows)
