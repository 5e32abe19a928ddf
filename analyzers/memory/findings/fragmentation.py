"""Write findings about reserved memory that is free but cannot be used or given back, because it is fragmented."""

from collections.abc import Iterator

from analyzers.memory.findings.evidence import fact, pool_words, ranks_of
from analyzers.memory.findings.remedies import saving_by
from analyzers.memory.model import Device, FreeBlocks, FreeMemory, Moment, Oom, OomPattern, Remedy
from analyzers.report import Evidence, Finding, Severity
from analyzers.words import EXPANDABLE_SEGMENTS, quantity, share, size

_SPLIT_SHARE_AT_LEAST, _SPLIT_BYTES_AT_LEAST = 0.2, 64 << 20
_WORTH_JOINING = 0.1
"""The share of the reserved memory from which on fragmented free memory explains why a request failed."""
_PLACES_SHOWN = 3
_FEWER_SIZES = "Allocate fewer different sizes: pad batches to a few lengths."


def fragmentation_findings(device: Device) -> Iterator[Finding]:
    """Yield a finding if a failed request would have fitted into fragmented memory, or if the peak was fragmented."""
    free = device.fragmentation.decisive
    if free is None:
        return
    match free.moment:
        case Moment.FAILED_REQUEST if device.oom and _is_fragmented(device, device.oom):
            yield _blocked_finding(device, free, device.oom.requested_bytes)
        case Moment.PEAK if free.split_bytes >= max(_SPLIT_BYTES_AT_LEAST, _SPLIT_SHARE_AT_LEAST * free.reserved_bytes):
            yield _split_finding(device, free)


def _would_have_served(free: FreeMemory, request: int) -> bool:
    """Return whether a request fits into all free memory together, but into no single free block.

    All free memory is the free memory in segments that other blocks use, plus the free memory of the device: expandable
    segments could join them.
    """
    return free.largest_bytes < request <= free.split_bytes + (free.device_free_bytes or 0)


def is_served_by_pieces(device: Device, oom: Oom) -> bool:
    """Return whether joining free memory would have satisfied a request, and no estimate contradicts it."""
    saving = saving_by(device, Remedy.EXPANDABLE_SEGMENTS)
    enough = saving is None or saving.frees_bytes + oom.device_free_bytes >= oom.requested_bytes
    return enough and _is_fragmented(device, oom)


def _is_fragmented(device: Device, oom: Oom) -> bool:
    """Return whether free memory was enough for a request but fragmented, and enough to explain the failure.

    Where earlier steps had not needed as much, a few per cent would only move the failure to one of the next requests.
    """
    free = device.fragmentation.decisive
    if free is None or not _would_have_served(free, oom.requested_bytes):
        return False
    return oom.pattern is OomPattern.STEADY or free.split_bytes >= _WORTH_JOINING * free.reserved_bytes


def _blocked_finding(device: Device, free: FreeMemory, request: int) -> Finding:
    """Return the finding that a request failed only because free memory was fragmented."""
    return Finding(
        id="memory.fragmentation",
        severity=Severity.ERROR,
        title=f"A request for {size(request)} failed although {size(free.split_bytes)} of reserved memory was free: the"
        f" largest free block was {size(free.largest_bytes)}",
        why=f"PyTorch's allocator had reserved {size(free.reserved_bytes)}. {size(free.split_bytes)} of it was free,"
        " but fragmented: it lay between blocks in use, so no free block was large enough, and none could be given"
        " back to the device.",
        next=defragment(device),
        ranks=ranks_of(device),
        step=device.step,
        evidence=list(evidence_of(device, free)),
        confidence=0.9,
    )


def _split_finding(device: Device, free: FreeMemory) -> Finding:
    """Return the finding that much of the memory reserved at the peak was free between blocks in use."""
    return Finding(
        id="memory.fragmentation",
        severity=Severity.WARNING,
        title=f"{size(free.split_bytes)} of the memory reserved at the peak was free in segments that tensors also use",
        why=f"At the peak PyTorch's allocator had reserved {size(free.reserved_bytes)}. {size(free.split_bytes)} of it"
        f" ({share(free.split_bytes, free.reserved_bytes)}) was free between blocks in use, so it could not be given"
        f" back to the device. The largest free block was {size(free.largest_bytes)}.",
        next=f"A request larger than {size(free.largest_bytes)} may fail although this memory is free."
        f" {defragment(device)}",
        ranks=ranks_of(device),
        step=device.step,
        evidence=list(evidence_of(device, free)),
        confidence=0.7,
    )


def evidence_of(device: Device, free: FreeMemory) -> Iterator[Evidence]:
    """Yield the fragmented bytes at the failed request or the peak, then the pools and segments at the end."""
    yield fact(
        device, f"free in segments in use, after entry {free.entry} of the allocation history: {size(free.split_bytes)}"
    )
    use = device.fragmentation
    for place in [*use.pools[:_PLACES_SHOWN], *use.segments[:_PLACES_SHOWN]]:
        yield fact(device, f"when the snapshot was taken, {_free_place(place)}")


def defragment(device: Device) -> str:
    """Return advice against fragmentation: expandable segments, unless they are in use or would free nothing."""
    if device.fragmentation.expandable:
        return f"{_FEWER_SIZES} Segments are expandable already."
    saving = saving_by(device, Remedy.EXPANDABLE_SEGMENTS)
    if saving and not saving.frees_bytes:
        return f"{_FEWER_SIZES} The allocator's setting expandable_segments would free nothing here ({saving.model})."
    sentence = f"Set {EXPANDABLE_SEGMENTS}."
    if saving is None:
        return sentence
    usable = f" {size(saving.frees_bytes)} would then be usable ({saving.model})."
    return f"{sentence} Of the {size(saving.of_bytes)} that were free like this when the snapshot was taken,{usable}"


def _free_place(free: FreeBlocks) -> str:
    """Return a phrase on the free memory in one pool or segment that cannot be released to the device."""
    where = (
        f"segment {free.segment:#x}" if free.segment is not None else f"{pool_words(free.pool)}, stream {free.stream}"
    )
    return (
        f"{where}: {size(free.split_bytes)} free in segments in use, {quantity(free.count, 'free block')},"
        f" the largest {size(free.largest_bytes)}"
    )
