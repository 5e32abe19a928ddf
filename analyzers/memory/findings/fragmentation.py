"""Findings about reserved memory that is free but cannot be used or given back, as it is fragmented."""

from collections.abc import Iterator

from analyzers.memory.findings.evidence import fact, ranks_of
from analyzers.memory.findings.remedies import saving_by
from analyzers.memory.model import Device, Fragmentation, FreeBlocks, Remedy
from analyzers.report import Finding, Severity
from analyzers.words import quantity, size

SPLIT_SHARE_AT_LEAST, SPLIT_BYTES_AT_LEAST = 0.2, 64 << 20
PLACES_SHOWN = 3
HARM = "A large request may fail although this memory is free. "


def fragmentation_findings(device: Device) -> Iterator[Finding]:
    """Yield a finding if much is free in segments in use, or if no free block was large enough for a request."""
    use = device.fragmentation
    if use.made_up_segments:
        return
    blocked = is_blocked(use)
    much_split = use.inactive_split_bytes >= max(SPLIT_BYTES_AT_LEAST, SPLIT_SHARE_AT_LEAST * use.reserved_bytes)
    if not blocked and not much_split:
        return
    yield Finding(
        id="memory.fragmentation",
        severity=Severity.ERROR if blocked else Severity.WARNING,
        title=f"{size(use.inactive_split_bytes)} of reserved memory is free but fragmented",
        why=f"Of {size(use.reserved_bytes)} reserved, {size(free_bytes(use))} are free,"
        f" {size(use.inactive_split_bytes)} of it in segments that are partly in use and cannot be given back. The"
        f" largest free block is {size(use.largest_free_block_bytes)}"
        + (f", smaller than the {size(use.request_bytes)} that were requested." if blocked else "."),
        next=f"{HARM if not blocked else ''}{defragment(device)}",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(device, f"free in segments in use: {size(use.inactive_split_bytes)} of {size(use.reserved_bytes)}"),
            *(fact(device, free_place(free)) for free in [*use.pools[:PLACES_SHOWN], *use.segments[:PLACES_SHOWN]]),
        ],
        confidence=0.9 if blocked else 0.7,
    )


def free_bytes(use: Fragmentation) -> int:
    """Return what is reserved and not allocated."""
    return use.reserved_bytes - use.allocated_bytes


def is_blocked(use: Fragmentation) -> bool:
    """Return whether a request failed although enough was free in all: no free block was large enough."""
    request = use.request_bytes
    return request is not None and use.largest_free_block_bytes < request <= free_bytes(use)


def defragment(device: Device) -> str:
    """Return what helps: expandable segments, unless the simulation says that they would free nothing."""
    saving = saving_by(device, Remedy.EXPANDABLE_SEGMENTS)
    if saving and not saving.frees_bytes:
        return (
            "Allocate fewer different sizes: pad batches to a few lengths. Expandable segments would free nothing here"
            f" ({saving.model})."
        )
    sentence = "Set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    if saving is None:
        return sentence
    amount = f"{size(saving.frees_bytes)} of {size(saving.of_bytes)}"
    return f"{sentence} That would make about {amount} usable ({saving.model})."


def free_place(free: FreeBlocks) -> str:
    """Return what is free in one pool or segment and cannot be given back."""
    where = f"segment {free.segment:#x}" if free.segment is not None else f"pool {free.pool}, stream {free.stream}"
    return (
        f"{where}: {size(free.split_bytes)} free in segments in use, {quantity(free.count, 'free block')},"
        f" the largest {size(free.largest_bytes)}"
    )
