"""The tables of a trace report."""

from typing import Any

from workbench.present.table import Table, table
from workbench.present.units import nanoseconds, share, size

NAME_AT_MOST = 70


def trace(data: Any) -> list[Table]:
    """Where the time of all ranks goes, who waits for whom, then the details of the first account."""
    first = data.ranks[:1]
    return [
        divided(data.ranks),
        idle([r for r in data.ranks if r.device is not None]),
        arithmetic([r for r in data.ranks if r.flops]),
        waiting(data.waits),
        meetings(data.meetings),
        clocks([c for c in data.clocks if not c.same_host]),
        *(build(r) for r in first for build in (phases, kernels, operators, modules, collectives, copies, compiled)),
    ]


def divided(ranks: list[Any]) -> Table:
    heads = "rank> | device> | steps> | span> | compute> | communication> | exposed> | memory> | idle>"
    rows = (
        (
            r.rank,
            r.device,
            r.steps,
            nanoseconds(r.span_ns),
            nanoseconds(r.compute_ns),
            nanoseconds(r.communication_ns),
            nanoseconds(r.exposed_communication_ns),
            nanoseconds(r.memory_ns),
            nanoseconds(r.idle_ns),
        )
        for r in ranks
    )
    return table("Where the time goes", heads, rows)


def idle(ranks: list[Any]) -> Table:
    heads = "rank> | device> | host too late> | dependency> | launch latency> | unexplained> | blocking communication>"
    rows = (
        (
            r.rank,
            r.device,
            nanoseconds(r.idle_host_ns),
            nanoseconds(r.idle_dependency_ns),
            nanoseconds(r.idle_launch_ns),
            nanoseconds(r.idle_unexplained_ns),
            nanoseconds(r.blocking_communication_ns),
        )
        for r in ranks
    )
    return table("Why the device does not compute", heads, rows)


def arithmetic(ranks: list[Any]) -> Table:
    """What the steps did of what the device can do; only operators whose shapes were recorded count."""
    heads = "rank> | device> | GFLOP> | done again> | GFLOP/s> | peak, dense 16 bit> | MFU> | with what is done again>"
    rows = (
        (
            r.rank,
            r.device,
            f"{r.flops / 1e9:,.3g}",
            share(r.recomputed_flops, r.flops),
            f"{r.flops_per_s / 1e9:,.3g}",
            "-" if r.peak_flops_per_s is None else f"{r.peak_flops_per_s / 1e9:,.3g}",
            "-" if r.mfu is None else share(r.mfu, 1),
            "-" if r.hfu is None else share(r.hfu, 1),
        )
        for r in ranks
    )
    return table("Arithmetic of products, convolutions and attention", heads, rows)


def waiting(waits: list[Any]) -> Table:
    heads = "rank> | waits> | others wait for it> | comes last> | more to do than others> | saved without that>"
    rows = (
        (
            w.rank,
            nanoseconds(w.wait_ns),
            nanoseconds(w.caused_ns),
            f"{w.last_arrivals} of {w.collectives}",
            nanoseconds(w.excess_ns),
            share(w.saved_ns, w.window_ns),
        )
        for w in waits
    )
    return table("Who waits for whom", heads, rows)


def meetings(found: list[Any]) -> Table:
    heads = "collective | group | step> | last rank> | late by> | waiting of all> | transfer>"
    rows = (
        (
            m.name if m.sequence is None else f"{m.name} #{m.sequence}",
            m.group,
            m.step,
            m.last_rank,
            nanoseconds(m.late_ns),
            nanoseconds(m.wait_ns),
            nanoseconds(m.transfer_ns),
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
            nanoseconds(c.offset_ns),
            nanoseconds(max(c.high_ns - c.offset_ns, c.offset_ns - c.low_ns)) if c.agrees else "-",
            f"{c.drift_ppm:.2f} ± {c.drift_error_ppm:.2g} ppm" if c.drift_ppm else "-",
            "-" if c.residual_ns is None else nanoseconds(c.residual_ns),
            c.collectives,
        )
        for c in found
    )
    return table("Clocks against that of the first rank", heads, rows, 8)


def phases(rank: Any) -> Table:
    heads = "phase | events> | busy> | compute> | exposed communication> | share>"
    rows = (
        (
            p.name,
            p.events,
            nanoseconds(p.busy_ns),
            nanoseconds(p.compute_ns),
            nanoseconds(p.exposed_communication_ns),
            share(p.busy_ns, rank.span_ns),
        )
        for p in rank.phases
    )
    return table(f"Work by the phase that launched it{of(rank)}", heads, rows, 8)


def kernels(rank: Any) -> Table:
    rows = (
        (k.name[:NAME_AT_MOST], k.kind, k.count, nanoseconds(k.total_ns), nanoseconds(k.mean_ns)) for k in rank.kernels
    )
    return table(f"Longest work{of(rank)}", "name | kind | count> | total> | mean>", rows, 8)


def operators(rank: Any) -> Table:
    """Only of a device: on a host they are the longest work already."""
    rows = (
        (
            o.name[:NAME_AT_MOST],
            o.count,
            nanoseconds(o.own_ns),
            nanoseconds(o.device_ns),
            f"{o.flops / o.device_ns / 1e3:.1f}" if o.flops and o.device_ns else "",
            o.bound,
        )
        for o in (rank.operators if rank.device is not None else [])
        if o.device_ns
    )
    return table(f"Operators{of(rank)}", "name | count> | host, own> | device> | TFLOP/s> | bound by", rows, 8)


def modules(rank: Any) -> Table:
    rows = ((m.name, m.count, nanoseconds(m.host_ns), nanoseconds(m.device_ns), m.kernels) for m in rank.modules)
    return table(f"Modules{of(rank)}", "name | calls> | host> | device> | kernels>", rows, 8)


def collectives(rank: Any) -> Table:
    rows = (
        (
            c.name,
            c.group,
            c.group_size,
            size(c.bytes) if c.bytes else "-",
            c.count,
            nanoseconds(c.median_ns),
            nanoseconds(c.min_ns),
            f"{c.bus_bytes_per_s / 1e9:.2f}" if c.bytes else "-",
        )
        for c in rank.collectives
    )
    heads = "name | group | ranks> | size> | count> | median> | shortest> | bus GB/s at best>"
    return table(f"Collectives{of(rank)}", heads, rows, 6)


def copies(rank: Any) -> Table:
    rows = (
        (c.name, c.count, nanoseconds(c.total_ns), size(c.bytes), f"{c.bytes_per_s / 1e9:.2f}" if c.bytes else "-")
        for c in rank.copies
    )
    return table(f"Memory copies{of(rank)}", "name | count> | total> | moved> | GB/s>", rows, 6)


def compiled(rank: Any) -> Table:
    """The frames that torch.compile compiled."""
    heads = "function | calls> | versions> | breaks> | between graphs> | compiled> | took> | broken at"
    rows = (
        (
            f.function or f"frame {f.frame}",
            f.calls,
            f.versions,
            f.breaks,
            nanoseconds(f.between_ns),
            f.compilations,
            nanoseconds(f.compile_ns),
            f.broken_at,
        )
        for f in (rank.compiled.frames if rank.compiled else [])
    )
    return table(f"Compiled code{of(rank)}", heads, rows, 8)


def of(rank: Any) -> str:
    return "" if rank.rank is None else f", rank {rank.rank}"
