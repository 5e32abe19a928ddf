"""The tables of one rank's trace."""

import re
from typing import Any

from analyzers.words import duration_ns, flops, share, size
from workbench.present.table import Table, table

LONG, MIDDLE, SHORT = 70, 44, 36
SHARED = re.compile(r"\(anonymous namespace\)::|\b[a-z]\w*::|, (?:\w+::)*[Aa]rray<char *\*, \w+>")
"""Namespaces and the type of the pointers, which every kernel of a library shares."""


def details(rank: Any) -> list[Table]:
    """All that is known of one rank, the longest of each kind."""
    tables = (
        phases, kernels, fillings, operators, pairs, shapes, modules, lines, annotations, streams, collectives,
        launches, queues, synchronisations, copies, copy_sizes, graphs, sequences, compiled, counters,
    )  # fmt: skip
    return [build(rank) for build in tables]


def cut(name: str, length: int = LONG) -> str:
    """A name without what says nothing, no longer than there is room for."""
    name = name.removeprefix("void ")
    return name if len(name) <= length else f"{name[: length - 1]}…"


def kernel_name(name: str, length: int = LONG) -> str:
    """A kernel's name by what tells it from others: without namespaces and parameters, cut in the middle."""
    if "<" in name or "(" in name:
        name = SHARED.sub("", without_parameters(name.removeprefix("void ")))
        name = name.replace(", ", ",").replace(" >", ">")
    return middle(name, length)


def without_parameters(name: str) -> str:
    """A function without its last pair of parentheses; template arguments may have some, too."""
    depth = 0
    for place in range(len(name) - 1, 0, -1):
        depth += (name[place] == ")") - (name[place] == "(")
        if not depth:
            return name[:place] if name.endswith(")") else name
    return name


def middle(text: str, length: int) -> str:
    """A text whose middle is left out where it is longer."""
    end = length // 3
    return text if len(text) <= length else f"{text[: length - end - 1]}…{text[-end:]}"


def phases(rank: Any) -> Table:
    heads = "phase | events> | busy> | compute> | exposed communication> | share>"
    rows = (
        (
            p.name,
            p.events,
            duration_ns(p.busy_ns),
            duration_ns(p.compute_ns),
            duration_ns(p.exposed_communication_ns),
            share(p.busy_ns, rank.span_ns),
        )
        for p in rank.phases
    )
    return table(f"Work by the phase that launched it{of(rank)}", heads, rows, 8)


def kernels(rank: Any) -> Table:
    heads = "name | kind | count> | total> | of span> | mean> | median> | deviation> | longest>"
    rows = (
        (
            kernel_name(k.name, SHORT),
            k.kind,
            k.count,
            duration_ns(k.total_ns),
            share(k.total_ns, rank.span_ns),
            *(duration_ns(ns) for ns in (k.mean_ns, k.median_ns, k.std_ns, k.max_ns)),
        )
        for k in rank.kernels
    )
    return table(f"Longest work{of(rank)}", heads, rows, 8)


def fillings(rank: Any) -> Table:
    """How well the longest kernels fill the device, where the recorder noted it."""
    rows = (
        (
            kernel_name(k.name),
            share(k.total_ns, rank.span_ns),
            "" if k.occupancy is None else f"{k.occupancy:.0f} %",
            *("" if one is None else f"{one:.1f}" for one in (k.warps_per_sm, k.blocks_per_sm)),
            k.limited_by,
        )
        for k in rank.kernels
        if k.occupancy is not None or k.limited_by
    )
    heads = "name | of span> | occupancy> | warps per SM> | blocks per SM> | limited by"
    return table(f"How kernels fill the device{of(rank)}", heads, rows, 8)


def operators(rank: Any) -> Table:
    """Only of a device: on a host they are the longest work already."""
    rows = (
        (
            cut(o.name),
            o.count,
            duration_ns(o.own_ns),
            duration_ns(o.device_ns),
            flops(o.flops / o.device_ns * 1e9, "/s") if o.flops and o.device_ns else "",
            o.bound,
        )
        for o in (rank.operators if rank.device is not None else [])
        if o.device_ns
    )
    return table(f"Operators{of(rank)}", "name | count> | host, own> | device> | rate> | bound by", rows, 8)


def modules(rank: Any) -> Table:
    rows = ((m.name, m.count, duration_ns(m.host_ns), duration_ns(m.device_ns), m.kernels) for m in rank.modules)
    return table(f"Modules{of(rank)}", "name | calls> | host> | device> | kernels>", rows, 8)


def collectives(rank: Any) -> Table:
    rows = (
        (
            c.name,
            c.group_desc or c.group or "-",
            c.group_size,
            size(c.bytes) if c.bytes else "-",
            c.count,
            duration_ns(c.median_ns),
            duration_ns(c.min_ns),
            f"{c.bus_bytes_per_s / 1e9:.2f}" if c.bytes else "-",
        )
        for c in rank.collectives
    )
    heads = "name | group | ranks> | size> | count> | median> | shortest> | bus GB/s at best>"
    return table(f"Collectives{of(rank)}", heads, rows, 6)


def copies(rank: Any) -> Table:
    rows = (
        (
            c.name,
            c.count,
            duration_ns(c.total_ns),
            size(c.bytes or None),
            f"{c.bytes_per_s / 1e9:.2f}" if c.bytes else "-",
        )
        for c in rank.copies
    )
    return table(f"Memory copies{of(rank)}", "name | count> | total> | moved> | GB/s>", rows, 6)


def pairs(rank: Any) -> Table:
    """Which kernels an operator launches."""
    rows = (
        (cut(one.operator, SHORT), kernel_name(one.kernel, MIDDLE), one.count, duration_ns(one.total_ns))
        for one in rank.launched
    )
    return table(f"Kernels by operator{of(rank)}", "operator | kernel | count> | total>", rows, 8)


def shapes(rank: Any) -> Table:
    rows = (
        (
            cut(one.name, SHORT),
            cut(one.shapes.replace("c10::", ""), MIDDLE),
            one.count,
            duration_ns(one.total_ns),
            flops(one.flops_per_s, "/s") if one.flops else "",
            one.bound,
        )
        for one in rank.shapes
    )
    heads = "name | inputs | count> | total> | rate> | bound by"
    return table(f"Operators by the sizes of their inputs{of(rank)}", heads, rows, 8)


def lines(rank: Any) -> Table:
    return costs(rank, rank.lines, "Functions of the user's own")


def annotations(rank: Any) -> Table:
    return costs(rank, rank.annotations, "Annotations")


def costs(rank: Any, found: list[Any], title: str) -> Table:
    rows = (
        (
            cut(one.name),
            one.count,
            duration_ns(one.host_ns),
            duration_ns(one.own_ns),
            duration_ns(one.device_ns),
            one.kernels,
        )
        for one in found
    )
    return table(f"{title}{of(rank)}", "name | count> | host> | own> | device> | kernels>", rows, 8)


def streams(rank: Any) -> Table:
    """How the time of each stream divides; on a host that of each thread."""
    rows = (
        (
            one.name,
            one.events,
            duration_ns(one.busy_ns),
            duration_ns(one.compute_ns),
            duration_ns(one.communication_ns),
            duration_ns(one.memory_ns),
            duration_ns(one.idle_ns),
        )
        for one in rank.streams
    )
    heads = "name | events> | busy> | compute> | communication> | memory> | idle>"
    return table(f"{'Streams' if rank.device is not None else 'Threads'}{of(rank)}", heads, rows, 8)


def launches(rank: Any) -> Table:
    """From the end of a launching call to the kernel's beginning, and how many kernels wait in between."""
    rows = (
        (
            one.count,
            one.early,
            *(duration_ns(ns) for ns in (one.delay_median_ns, one.delay_p95_ns, one.delay_max_ns)),
            f"{one.queue_mean:.3g}",
            one.queue_max,
            f"{one.blocked}, {duration_ns(one.blocked_ns)}",
        )
        for one in ([rank.launches] if rank.launches else [])
    )
    heads = "launches> | call outlasted> | delay, median> | p95> | longest> | queue, mean> | most> | slow calls>"
    return table(f"Launches{of(rank)}", heads, rows)


def queues(rank: Any) -> Table:
    rows = ((one.name, one.count, f"{one.mean:.3g}", one.max, duration_ns(one.full_ns)) for one in rank.queues)
    return table(f"Queues{of(rank)}", "name | launches> | mean length> | most> | over 1000 for>", rows, 8)


def synchronisations(rank: Any) -> Table:
    rows = ((one.name, one.count, duration_ns(one.total_ns), duration_ns(one.max_ns)) for one in rank.synchronisations)
    return table(f"Calls in which the host waits{of(rank)}", "name | count> | total> | longest>", rows, 8)


def copy_sizes(rank: Any) -> Table:
    rows = (
        (
            one.name,
            f"{size(one.at_least)} to {size(16 * one.at_least)}",
            one.count,
            duration_ns(one.total_ns),
            size(one.bytes),
            f"{one.bytes_per_s / 1e9:.2f}",
        )
        for one in rank.copy_sizes
    )
    heads = "name | size of each> | count> | total> | moved> | GB/s>"
    return table(f"Memory copies by size{of(rank)}", heads, rows)


def graphs(rank: Any) -> Table:
    rows = ((one.launches, one.kernels, duration_ns(one.device_ns)) for one in ([rank.graphs] if rank.graphs else []))
    return table(f"CUDA graphs{of(rank)}", "launches> | kernels> | device>", rows)


def sequences(rank: Any) -> Table:
    rows = (
        (
            " > ".join(kernel_name(name, SHORT) for name in one.names[:3]),
            len(one.names),
            one.count,
            duration_ns(one.total_ns),
        )
        for one in rank.sequences
    )
    heads = "begins with | kernels> | count> | total>"
    return table(f"Kernels that follow each other again and again{of(rank)}", heads, rows)


def begins(names: list[str]) -> str:
    return " > ".join(kernel_name(name, SHORT) for name in names[:3])


def counters(rank: Any) -> Table:
    rows = ((cut(one.range, MIDDLE), one.name, one.count, f"{one.total:,.6g}") for one in rank.counters)
    return table(f"Performance counters{of(rank)}", "range | counter | count> | total>", rows)


def compiled(rank: Any) -> Table:
    """The frames that torch.compile compiled."""
    heads = "function | calls> | versions> | breaks> | between graphs> | compiled> | took> | broken at"
    rows = (
        (
            f.function or f"frame {f.frame}",
            f.calls,
            f.versions,
            f.breaks,
            duration_ns(f.between_ns),
            f.compilations,
            duration_ns(f.compile_ns),
            f.broken_at,
        )
        for f in (rank.compiled.frames if rank.compiled else [])
    )
    return table(f"Compiled code{of(rank)}", heads, rows, 8)


def of(rank: Any) -> str:
    return "" if rank.rank is None else f", rank {rank.rank}"
