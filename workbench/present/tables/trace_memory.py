"""The tables of the memory that the devices of one traced rank held."""

from collections.abc import Sequence
from typing import Any

from analyzers.words import duration_ns, size
from workbench.present.table import Table, table
from workbench.present.tables.trace_rank import cut as shortened
from workbench.present.tables.trace_rank import of

SHORT, ROWS = 36, 8


def memory(rank: Any) -> list[Table]:
    """What was allocated and freed, a set of tables a device; none where the trace does not tell."""
    return [devices(rank), *(section for one in rank.device_memory for section in of_device(rank, one))]


def devices(rank: Any) -> Table:
    rows = (
        (
            name(one),
            size(one.start_bytes),
            size(one.peak.bytes),
            one.peak.step,
            one.peak.phase,
            cut(one.peak.operator),
            cut(one.peak.module),
            size(one.reserved_peak.bytes) if one.reserved_peak else "-",
            size(one.end_bytes),
            size(one.unfreed_bytes),
        )
        for one in rank.device_memory
    )
    heads = "memory of | at first> | at most> | in step> | phase | in operator | in module | reserved> | at the end> |"
    return table(f"Memory while it was recorded{of(rank)}", f"{heads} never freed>", rows)


def of_device(rank: Any, one: Any) -> list[Table]:
    whose = f", {name(one)}{of(rank)}"
    return [
        turnover(f"Memory by operator{whose}", one.operators),
        turnover(f"Memory by module{whose}", one.modules),
        turnover(f"Memory by function of the user's own{whose}", one.lines),
        turnover(f"Memory by phase{whose}", one.phases),
        steps(f"Memory by step{whose}", one.steps),
        largest(f"Largest allocations{whose}", one.largest),
        kept(f"What was never freed while it was recorded{whose}", one.unfreed),
    ]


def turnover(title: str, found: Sequence[Any]) -> Table:
    """All that was allocated inside, and what not in something else of the kind that was called."""
    rows = (
        (
            cut(one.name),
            one.allocations,
            size(one.allocated_bytes),
            size(one.net_bytes),
            size(one.own_allocated_bytes),
            size(one.own_net_bytes),
        )
        for one in found
    )
    heads = "name | allocations> | allocated> | net> | allocated, own> | net, own>"
    return table(title, heads, rows, ROWS)


def steps(title: str, found: Sequence[Any]) -> Table:
    rows = (
        (
            one.step,
            size(one.start_bytes),
            size(one.peak_bytes),
            size(one.peak_reserved_bytes) if one.peak_reserved_bytes else "-",
            size(one.end_bytes),
            size(one.end_bytes - one.start_bytes),
            one.allocations,
            size(one.allocated_bytes),
        )
        for one in found
    )
    heads = "step> | at first> | at most> | reserved> | at the end> | grown by> | allocations> | allocated>"
    return table(title, heads, rows, ROWS)


def largest(title: str, found: Sequence[Any]) -> Table:
    rows = (
        (
            size(one.bytes),
            one.step,
            one.phase,
            cut(one.operator),
            cut(one.module),
            cut(one.line),
            "not freed" if one.lifetime_ns is None else duration_ns(one.lifetime_ns),
        )
        for one in found
    )
    return table(title, "size> | step> | phase | operator | module | function | lives>", rows, ROWS)


def kept(title: str, found: Sequence[Any]) -> Table:
    rows = ((size(one.bytes), one.count, cut(one.operator), cut(one.module), cut(one.line)) for one in found)
    return table(title, "size> | allocations> | operator | module | function", rows, ROWS)


def name(one: Any) -> str:
    """`cuda 0`; a host has no number."""
    return one.type if one.device is None else f"{one.type} {one.device}"


def cut(text: str) -> str:
    """An operator, a module, or a function with its file and the folder of that."""
    return shortened("/".join(text.split("/")[-2:]), SHORT) or "-"
