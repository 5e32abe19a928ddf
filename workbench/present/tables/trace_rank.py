"""Tables of a single rank's trace: kernels, operators, streams, launches, copies and other recorded items."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from analyzers.words import (
    MEDIUM,
    SHORT,
    bandwidth,
    duration_ns,
    figures,
    flops,
    kernel_name,
    percent,
    share,
    shortened,
    size,
    user_function,
)
from workbench.present.table import Table, table

if TYPE_CHECKING:
    from analyzers.traces.model import (
        Allocation,
        Cost,
        DeviceMemory,
        NamedAllocationTotals,
        RankTrace,
        StepMemory,
        UnfreedMemory,
    )


_ROWS = 8
NO_GROUP = "not recorded"


def detail_tables(rank: "RankTrace") -> list[Table]:
    """Return all tables of one rank except memory tables; in each table, the items with the most time come first."""
    builders = (
        phases, kernels, occupancy, operators, _launched_kernels, _input_shapes, modules, _user_functions, annotations,
        streams, collectives, launches, queues, _blocking_calls, copies, copy_sizes, graphs, sequences, compiled_code,
        counters,
    )  # fmt: skip
    return [build(rank) for build in builders]


def _rank_suffix(rank: "RankTrace") -> str:
    return "" if rank.rank is None else f", rank {rank.rank}"


def phases(rank: "RankTrace") -> Table:
    """Return a table of device time by phase of the step; the phase is the one in which the host launched the work."""
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
    return table(f"Work by phase that launched it{_rank_suffix(rank)}", heads, rows, _ROWS)


def kernels(rank: "RankTrace") -> Table:
    """Return a table of the kernels with the most total time.

    For a rank without a device, the rows are the operators with the most host time, without the operators that they
    call.
    """
    heads = "name | kind | count> | total> | share> | mean> | median> | deviation> | longest>"
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
    title = "Kernels by total time" if rank.device is not None else "Operators by total time"
    return table(f"{title}{_rank_suffix(rank)}", heads, rows, _ROWS)


def occupancy(rank: "RankTrace") -> Table:
    rows = (
        (
            kernel_name(k.name),
            share(k.total_ns, rank.span_ns),
            "" if k.occupancy is None else percent(k.occupancy / 100),
            *("" if count is None else figures(count) for count in (k.warps_per_sm, k.blocks_per_sm)),
            k.limited_by,
        )
        for k in rank.kernels
        # Older profilers and CPU traces record neither, and a table of empty cells says nothing.
        if k.occupancy is not None or k.limited_by
    )
    heads = "name | share> | occupancy> | warps per SM> | blocks per SM> | limited by"
    return table(f"Occupancy of the longest kernels{_rank_suffix(rank)}", heads, rows, _ROWS)


def operators(rank: "RankTrace") -> Table:
    rows = (
        (
            shortened(o.name),
            o.count,
            duration_ns(o.own_ns),
            duration_ns(o.device_ns),
            flops(o.flops / o.device_ns * 1e9, "/s") if o.flops and o.device_ns else "",
            o.bound,
        )
        for o in (rank.operators if rank.device is not None else [])
        if o.device_ns
    )
    heads = "name | count> | own host time> | device> | rate> | bound by"
    return table(f"Operators{_rank_suffix(rank)}", heads, rows, _ROWS)


def _launched_kernels(rank: "RankTrace") -> Table:
    rows = (
        (shortened(pair.operator, SHORT), kernel_name(pair.kernel, MEDIUM), pair.count, duration_ns(pair.total_ns))
        for pair in rank.launched
    )
    return table(f"Kernels by operator{_rank_suffix(rank)}", "operator | kernel | count> | total>", rows, _ROWS)


def _input_shapes(rank: "RankTrace") -> Table:
    rows = (
        (
            shortened(shape.name, SHORT),
            # Every dtype carries the same namespace; without it twice as many shapes fit.
            shortened(shape.shapes.replace("c10::", ""), MEDIUM),
            shape.count,
            duration_ns(shape.total_ns),
            flops(shape.flops_per_s, "/s") if shape.flops else "",
            shape.bound,
        )
        for shape in rank.shapes
    )
    heads = "name | inputs | count> | total> | rate> | bound by"
    return table(f"Operators by input shapes{_rank_suffix(rank)}", heads, rows, _ROWS)


def modules(rank: "RankTrace") -> Table:
    """Return a table of the time of each module of the model, including the modules that it calls."""
    rows = ((m.name, m.count, duration_ns(m.host_ns), duration_ns(m.device_ns), m.kernels) for m in rank.modules)
    return table(f"Modules{_rank_suffix(rank)}", "name | calls> | host> | device> | kernels>", rows, _ROWS)


def _user_functions(rank: "RankTrace") -> Table:
    return costs(rank, rank.lines, "Functions in user code")


def annotations(rank: "RankTrace") -> Table:
    """Return a table of the time in code ranges that are annotated with `record_function`."""
    return costs(rank, rank.annotations, "Annotations")


def costs(rank: "RankTrace", items: "Iterable[Cost]", title: str) -> Table:
    rows = (
        (
            shortened(item.name),
            item.count,
            duration_ns(item.host_ns),
            duration_ns(item.own_ns),
            duration_ns(item.device_ns),
            item.kernels,
        )
        for item in items
    )
    heads = "name | count> | host> | own host time> | device> | kernels>"
    return table(f"{title}{_rank_suffix(rank)}", heads, rows, _ROWS)


def streams(rank: "RankTrace") -> Table:
    """Return a table of how each stream spends its time; for a rank without a device, each host thread."""
    rows = (
        (
            stream.name,
            stream.events,
            duration_ns(stream.busy_ns),
            duration_ns(stream.compute_ns),
            duration_ns(stream.communication_ns),
            duration_ns(stream.memory_ns),
            duration_ns(stream.idle_ns),
        )
        for stream in rank.streams
    )
    heads = "name | events> | busy> | compute> | communication> | memory> | idle>"
    title = "Streams" if rank.device is not None else "Threads"
    return table(f"{title}{_rank_suffix(rank)}", heads, rows, _ROWS)


def collectives(rank: "RankTrace") -> Table:
    rows = (
        (
            c.name,
            c.group_desc or c.group or NO_GROUP,
            c.group_size,
            size(c.bytes or None),
            c.count,
            duration_ns(c.median_ns),
            duration_ns(c.min_ns),
            bandwidth(c.bus_bytes_per_s) if c.bytes else None,
        )
        for c in rank.collectives
    )
    heads = "name | group | ranks> | size> | count> | median> | shortest> | best bus bandwidth>"
    return table(f"Collectives{_rank_suffix(rank)}", heads, rows, 6)


def launches(rank: "RankTrace") -> Table:
    """Return a table of launch delays and queue lengths.

    A launch delay is the time from the end of the call that launches a kernel to the start of the kernel.
    """
    rows = (
        (
            all_calls.count,
            all_calls.early,
            *(duration_ns(ns) for ns in (all_calls.delay_median_ns, all_calls.delay_p95_ns, all_calls.delay_max_ns)),
            figures(all_calls.queue_mean),
            all_calls.queue_max,
            f"{all_calls.blocked}, {duration_ns(all_calls.blocked_ns)}",
        )
        for all_calls in ([rank.launches] if rank.launches else [])
    )
    delays = "median delay> | p95 delay> | longest delay>"
    heads = f"launches> | kernel first> | {delays} | mean queue> | longest queue> | slow calls>"
    title = "Kernel launches (kernel first: it started before the launching call returned)"
    return table(f"{title}{_rank_suffix(rank)}", heads, rows)


def queues(rank: "RankTrace") -> Table:
    """Return a table of the number of kernels that wait on each stream.

    If about 1000 kernels wait, the next launching call blocks the host.
    """
    rows = ((q.name, q.count, figures(q.mean), q.max, duration_ns(q.full_ns)) for q in rank.queues)
    heads = "name | launches> | mean length> | longest> | time above 1000>"
    return table(f"Launch queues{_rank_suffix(rank)}", heads, rows, _ROWS)


def _blocking_calls(rank: "RankTrace") -> Table:
    rows = (
        (call.name, call.count, duration_ns(call.total_ns), duration_ns(call.max_ns)) for call in rank.synchronisations
    )
    return table(f"Calls that block the host{_rank_suffix(rank)}", "name | count> | total> | longest>", rows, _ROWS)


def copies(rank: "RankTrace") -> Table:
    rows = (
        (
            copy.name,
            copy.count,
            duration_ns(copy.total_ns),
            size(copy.bytes or None),
            bandwidth(copy.bytes_per_s) if copy.bytes else None,
        )
        for copy in rank.copies
    )
    return table(f"Memory copies{_rank_suffix(rank)}", "name | count> | total> | copied> | bandwidth>", rows, 6)


def copy_sizes(rank: "RankTrace") -> Table:
    """Return a table of memory copies by size; small copies reach only a part of the bandwidth."""
    rows = (
        (
            copy.name,
            # Sizes are grouped by powers of 16, as `CopySize` explains.
            f"{size(copy.at_least)} to {size(16 * copy.at_least)}",
            copy.count,
            duration_ns(copy.total_ns),
            size(copy.bytes),
            bandwidth(copy.bytes_per_s),
        )
        for copy in rank.copy_sizes
    )
    heads = "name | size of each> | count> | total> | copied> | bandwidth>"
    return table(f"Memory copies by size{_rank_suffix(rank)}", heads, rows)


def graphs(rank: "RankTrace") -> Table:
    rows = ((g.launches, g.kernels, duration_ns(g.device_ns)) for g in ([rank.graphs] if rank.graphs else []))
    return table(f"CUDA graphs{_rank_suffix(rank)}", "launches> | kernels> | device>", rows)


def sequences(rank: "RankTrace") -> Table:
    """Return a table of repeated kernel sequences, which are candidates for fusion or for a CUDA graph."""
    rows = (
        (
            " > ".join(kernel_name(name, SHORT) for name in sequence.names[:3]),
            len(sequence.names),
            sequence.count,
            duration_ns(sequence.total_ns),
        )
        for sequence in rank.sequences
    )
    heads = "first kernels | kernels> | count> | total>"
    return table(f"Repeated sequences of kernels{_rank_suffix(rank)}", heads, rows)


def compiled_code(rank: "RankTrace") -> Table:
    breaks = "graph breaks> | time between graphs>"
    heads = f"function | calls> | versions> | {breaks} | compilations> | compile time> | break at"
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
    return table(f"Compiled code{_rank_suffix(rank)}", heads, rows, _ROWS)


def counters(rank: "RankTrace") -> Table:
    rows = ((shortened(c.range, MEDIUM), c.name, c.count, f"{c.total:,.6g}") for c in rank.counters)
    return table(f"Performance counters{_rank_suffix(rank)}", "range | counter | count> | total>", rows)


def memory_tables(rank: "RankTrace") -> list[Table]:
    return [devices(rank), *(section for memory in rank.device_memory for section in _device_tables(rank, memory))]


def devices(rank: "RankTrace") -> Table:
    rows = (
        (
            device_name(memory),
            size(memory.start_bytes),
            size(memory.peak.bytes),
            memory.peak.step,
            memory.peak.phase,
            user_function(memory.peak.operator),
            user_function(memory.peak.module),
            size(memory.reserved_peak.bytes) if memory.reserved_peak else "not recorded",
            size(memory.end_bytes),
            size(memory.unfreed_bytes),
        )
        for memory in rank.device_memory
    )
    peak = "peak> | in step> | phase | operator | module | peak reserved>"
    heads = f"device | at the start> | {peak} | at the end> | never freed>"
    return table(f"Memory during the recording{_rank_suffix(rank)}", heads, rows)


def _device_tables(rank: "RankTrace", memory: "DeviceMemory") -> list[Table]:
    suffix = f", {device_name(memory)}{_rank_suffix(rank)}"
    return [
        totals(f"Memory by operator{suffix}", memory.operators),
        totals(f"Memory by module{suffix}", memory.modules),
        totals(f"Memory by function in user code{suffix}", memory.lines),
        totals(f"Memory by phase{suffix}", memory.phases),
        steps(f"Memory by step{suffix}", memory.steps),
        largest(f"Largest allocations{suffix}", memory.largest),
        _never_freed(f"Memory never freed during the recording{suffix}", memory.unfreed),
    ]


def totals(title: str, items: "Iterable[NamedAllocationTotals]") -> Table:
    """Return a table of the memory allocated inside each operator, module, function or phase.

    The "own" columns exclude memory that was allocated by operators called inside.
    """
    rows = (
        (
            user_function(item.name),
            item.allocations,
            size(item.allocated_bytes),
            size(item.net_bytes),
            size(item.own_allocated_bytes),
            size(item.own_net_bytes),
        )
        for item in items
    )
    heads = "name | allocations> | allocated> | net> | own allocated> | own net>"
    return table(title, heads, rows, _ROWS)


def steps(title: str, items: "Iterable[StepMemory]") -> Table:
    rows = (
        (
            step.step,
            size(step.start_bytes),
            size(step.peak_bytes),
            size(step.peak_reserved_bytes) if step.peak_reserved_bytes else "not recorded",
            size(step.end_bytes),
            size(step.end_bytes - step.start_bytes),
            step.allocations,
            size(step.allocated_bytes),
        )
        for step in items
    )
    heads = "step> | at the start> | peak> | peak reserved> | at the end> | growth> | allocations> | allocated>"
    return table(title, heads, rows, _ROWS)


def largest(title: str, items: "Iterable[Allocation]") -> Table:
    rows = (
        (
            size(allocation.bytes),
            allocation.step,
            allocation.phase,
            user_function(allocation.operator),
            user_function(allocation.module),
            user_function(allocation.line),
            "not freed" if allocation.lifetime_ns is None else duration_ns(allocation.lifetime_ns),
        )
        for allocation in items
    )
    return table(title, "size> | step> | phase | operator | module | function | lifetime>", rows, _ROWS)


def _never_freed(title: str, items: "Iterable[UnfreedMemory]") -> Table:
    rows = (
        (size(k.bytes), k.count, user_function(k.operator), user_function(k.module), user_function(k.line))
        for k in items
    )
    return table(title, "size> | allocations> | operator | module | function", rows, _ROWS)


def device_name(memory: "DeviceMemory") -> str:
    """Return the name of a device, such as `cuda 0`; the host CPU has no number."""
    return memory.type if memory.device is None else f"{memory.type} {memory.device}"
