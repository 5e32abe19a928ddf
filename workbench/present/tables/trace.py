"""The tables of a trace report: all ranks side by side, then the details of one."""

from typing import TYPE_CHECKING, Any

from analyzers.words import duration_ns, flops, rank_ranges, share, size
from workbench.present.table import Table, table
from workbench.present.tables.trace_memory import memory
from workbench.present.tables.trace_rank import cut, details, kernel_name

if TYPE_CHECKING:
    import pandas as pd

EVENTS, PEERS = 12, 16


def trace(data: Any) -> list[Table]:
    """Where the time of all ranks goes, who waits for whom, then the details of the first account."""
    return [
        divided(data.ranks),
        idle([r for r in data.ranks if r.device is not None]),
        waiting(data.waits),
        axes([a for a in data.axes if a.groups > 1]),
        groups(data.groups),
        meetings(data.meetings),
        exchanges(data.ranks),
        clocks([c for c in data.clocks if not c.same_host]),
        arithmetic([r for r in data.ranks if r.flops]),
        critical(data.critical),
        validity(data.ranks),
        *(section for rank in data.ranks[:1] for section in of_rank(rank)),
    ]


def of_rank(rank: Any) -> list[Table]:
    """All that is known of one rank: its time, then its memory."""
    return [*details(rank), *memory(rank)]


def events(blocks: "pd.DataFrame") -> Table:
    """What takes longest in a window (`traces.views.timeline`); short neighbours are told as one."""
    most = blocks.nlargest(EVENTS, "busy_ns", keep="first")
    columns = (most[name] for name in ("name", "lane", "kind", "count", "start_ns", "busy_ns"))
    rows = (
        (cut(name), lane, kind or "host", count, duration_ns(start), duration_ns(busy))
        for name, lane, kind, count, start, busy in zip(*columns, strict=True)
    )
    heads = "longest of them | stream or thread | kind | events> | begins at> | take>"
    return table("Longest events of the window", heads, rows, EVENTS)


def latest(late: "pd.DataFrame") -> Table:
    """The collectives that a rank came latest to (`traces.views.lateness`)."""
    last = late.loc[late.groupby("which")["late_ns"].idxmax()].nlargest(EVENTS, "late_ns", keep="first")
    columns = (last[name] for name in ("which", "name", "rank", "late_ns", "start_ns"))
    rows = (
        (f"#{which}", name, rank, duration_ns(late_ns), duration_ns(start))
        for which, name, rank, late_ns, start in zip(*columns, strict=True)
    )
    return table("Latest arrivals", "collective | name | last rank> | late by> | arrived at>", rows, EVENTS)


def divided(ranks: list[Any]) -> Table:
    heads = "rank> | device> | steps> | span> | compute> | communication> | exposed> | memory> | idle>"
    rows = (
        (
            r.rank,
            r.device,
            steps_of(r),
            duration_ns(r.span_ns),
            duration_ns(r.compute_ns),
            duration_ns(r.communication_ns),
            duration_ns(r.exposed_communication_ns),
            duration_ns(r.memory_ns),
            duration_ns(r.idle_ns),
        )
        for r in ranks
    )
    return table("Where the time goes", heads, rows)


def exchanges(ranks: list[Any]) -> Table:
    """What each rank of the group that exchanges most sends to each other, as far as there is room."""
    most = max((e for r in ranks for e in r.exchanges), key=lambda e: sum(e.sent_bytes), default=None)
    members = len(most.sent_bytes[:PEERS]) if most else 0
    peers = most.ranks[:PEERS] if most and most.ranks else [f"member {i}" for i in range(members)]
    rows = (
        (r.rank, e.count, *(size(sent) for sent in e.sent_bytes[:PEERS]))
        for r in ranks
        for e in r.exchanges
        if most and (e.group, e.ranks) == (most.group, most.ranks)
    )
    heads = " | ".join(["rank>", "all-to-alls>", *(f"to {peer}>" for peer in peers)])
    return table(f"Who sends how much to whom in group {most.group_desc or most.group if most else ''}", heads, rows)


def idle(ranks: list[Any]) -> Table:
    kinds = "host too late> | dependency> | launch latency> | unexplained> | blocking communication>"
    rows = (
        (
            r.rank,
            r.device,
            steps_of(r),
            duration_ns(r.idle_host_ns),
            duration_ns(r.idle_dependency_ns),
            duration_ns(r.idle_launch_ns),
            duration_ns(r.idle_unexplained_ns),
            duration_ns(r.blocking_communication_ns),
        )
        for r in ranks
    )
    return table("Why the device does not compute", f"rank> | device> | steps> | {kinds}", rows)


def arithmetic(ranks: list[Any]) -> Table:
    """What the steps did of what the device can do; only operators whose shapes were recorded count."""
    heads = "rank> | device> | steps> | done> | recomputed> | rate> | peak, dense 16 bit> | MFU> | HFU>"
    rows = (
        (
            r.rank,
            r.device,
            steps_of(r),
            flops(r.flops),
            share(r.recomputed_flops, r.flops),
            flops(r.flops_per_s, "/s"),
            flops(r.peak_flops_per_s, "/s"),
            "-" if r.mfu is None else share(r.mfu, 1),
            "-" if r.hfu is None else share(r.hfu, 1),
        )
        for r in ranks
    )
    return table("Arithmetic of products, convolutions and attention (HFU counts what is recomputed)", heads, rows)


def steps_of(account: Any) -> str:
    """The numbers of its steps: recordings of several moments of a run stand beside each other."""
    return rank_ranges(step.step for step in account.step_times) or "-"


def validity(ranks: list[Any]) -> Table:
    """What is odd about each file, so that its numbers are trusted no further than they hold."""
    rows = ((r.rank, r.device, problem) for r in ranks for problem in r.problems)
    return table("What is odd about the recordings", "rank> | device> | what", rows)


def waiting(waits: list[Any]) -> Table:
    heads = "rank> | waits> | others wait for it> | comes last> | more to do than others> | saved without that>"
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
    return table("Who waits for whom", heads, rows)


def axes(found: list[Any]) -> Table:
    """Groups along one axis of the mesh have one description."""
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
        for a in found
    )
    heads = "groups | how many> | collectives> | waiting of all> | transfer> | worst of them | its waiting> | for rank>"
    return table("Waiting by mesh axis", heads, rows, 8)


def groups(found: list[Any]) -> Table:
    rows = (
        (
            g.desc or g.name or "-",
            rank_ranges(g.ranks),
            g.collectives,
            duration_ns(g.wait_ns),
            duration_ns(g.transfer_ns),
            g.last_rank,
            share(g.last_rank_share, 1),
        )
        for g in found
        if g.wait_ns
    )
    heads = "group | ranks | collectives> | waiting of all> | transfer> | most for rank> | of it>"
    return table("Waiting by process group", heads, rows, 5)


def meetings(found: list[Any]) -> Table:
    heads = "collective | group | step> | last rank> | late by> | waiting of all> | transfer>"
    rows = (
        (
            m.name if m.sequence is None else f"{m.name} #{m.sequence}",
            m.group_desc or m.group or "-",
            m.step,
            m.last_rank,
            duration_ns(m.late_ns),
            duration_ns(m.wait_ns),
            duration_ns(m.transfer_ns),
        )
        for m in found
        if m.wait_ns
    )
    return table("Collectives with most waiting", heads, rows, 5)


def clocks(found: list[Any]) -> Table:
    """Of ranks on other hosts: the ends of collectives tell how far their clocks are apart."""
    heads = "rank> | ahead by> | to within> | runs fast by> | ends scatter by> | collectives>"
    rows = (
        (
            c.rank,
            duration_ns(c.offset_ns),
            duration_ns(max(c.high_ns - c.offset_ns, c.offset_ns - c.low_ns)) if c.agrees else "-",
            f"{c.drift_ppm:.2f} ± {c.drift_error_ppm:.2g} ppm" if c.drift_ppm else "-",
            "-" if c.residual_ns is None else duration_ns(c.residual_ns),
            c.collectives,
        )
        for c in found
    )
    return table("Clocks against that of the first rank", heads, rows, 8)


def critical(parts: list[Any]) -> Table:
    """What a step consists of, along the chain of what held up what."""
    whole = sum(part.path_ns for part in parts)
    rows = (
        (
            kernel_name(part.name) or "outside of operators",
            part.kind,
            part.count,
            duration_ns(part.path_ns),
            share(part.path_ns, whole),
            duration_ns(part.saved_ns),
        )
        for part in parts
    )
    heads = "name | kind | pieces> | on the path> | share> | saved at most, if twice as fast>"
    of = f" of step {parts[0].step}" if parts and parts[0].step is not None else ""
    who = f", rank {parts[0].rank}" if parts and parts[0].rank is not None else ""
    return table(f"Critical path{of}{who}", heads, rows)
