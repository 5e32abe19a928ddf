"""Write findings about reserved memory that no block uses: retries of the allocator, unused pools, unused cache."""

from collections.abc import Iterator, Sequence

from analyzers.memory.findings.evidence import COMMON_POOL, fact, pool_words, ranks_of
from analyzers.memory.findings.fragmentation import defragment
from analyzers.memory.findings.remedies import BATCH
from analyzers.memory.model import Device, PoolUse
from analyzers.report import Finding, Severity
from analyzers.words import EXPANDABLE_SEGMENTS, quantity, share, size, uncapitalised

_UNUSED_SHARE_AT_LEAST, _UNUSED_BYTES_AT_LEAST = 0.25, 256 << 20
_EVIDENCE_SHOWN = 4


def unused_memory_findings(device: Device) -> Iterator[Finding]:
    """Yield the findings about reserved memory that is not used; none for a CPU, which has no real segments."""
    if device.fragmentation.made_up_segments:
        return
    if device.retries:
        yield _retries_finding(device)
    if device.idle_threshold:
        yield _threshold_finding(device, device.idle_threshold)
    unused_pools = [pool for pool in device.pools if pool.pool != COMMON_POOL and not pool.allocated_bytes]
    if sum(pool.reserved_bytes for pool in unused_pools) >= _UNUSED_BYTES_AT_LEAST:
        yield _unused_pools_finding(device, unused_pools)
    unused = device.reserved_bytes - device.fragmentation.allocated_bytes
    # If the list of blocks misses some that the history has, what looks unused may hold tensors.
    if device.consistent and unused >= max(_UNUSED_BYTES_AT_LEAST, _UNUSED_SHARE_AT_LEAST * device.reserved_bytes):
        yield _unused_cache_finding(device, unused)


def _retries_finding(device: Device) -> Finding:
    """Return the finding that allocations had to wait until the allocator had released cached segments."""
    freed = sum(retry.freed_bytes for retry in device.retries)
    return Finding(
        id="memory.retries",
        severity=Severity.WARNING,
        title=f"{quantity(len(device.retries), 'allocation')} had to wait until the allocator freed cached memory",
        why="The device was full. To make room, PyTorch's allocator gave cached memory that no tensor used back to the"
        f" driver, {size(freed)} in total. Each time it first waits until the device has finished all work, which"
        " makes the step longer.",
        next=f"Leave more memory free: use a smaller batch ({BATCH})"
        + ("." if device.fragmentation.expandable else f", or set {EXPANDABLE_SEGMENTS}."),
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(
                device,
                f"before entry {retry.index} of the allocation history: {size(retry.freed_bytes)} given back to the"
                " driver",
            )
            for retry in device.retries[:_EVIDENCE_SHOWN]
        ],
        confidence=0.8,
    )


def _threshold_finding(device: Device, threshold: str) -> Finding:
    """Return the finding that a setting of the allocator has no effect by itself."""
    return Finding(
        id="memory.idle_threshold",
        severity=Severity.INFO,
        title=f"garbage_collection_threshold:{threshold} has no effect unless the memory of the process is limited",
        why="The allocator compares its reserved memory with this share of what the process may use, and does so only"
        " if that is limited to a fraction of the device. No such limit is in the settings of the snapshot.",
        next="Remove the setting, or call torch.cuda.memory.set_per_process_memory_fraction() with a fraction below 1."
        " It frees cached memory earlier, and gives no memory that the allocator would not find by itself.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"the allocator's settings: garbage_collection_threshold {threshold}")],
        confidence=0.7,
    )


def _unused_pools_finding(device: Device, pools: Sequence[PoolUse]) -> Finding:
    """Return the finding that private memory pools (of CUDA graphs or MemPools) keep segments that no block uses."""
    reserved = sum(pool.reserved_bytes for pool in pools)
    return Finding(
        id="memory.dead_pool",
        severity=Severity.WARNING,
        title=f"{size(reserved)} is reserved in private memory pools that hold no tensor",
        why=f"No block is allocated in {', '.join(pool_words(pool.pool) for pool in pools)}. Private pools belong to"
        " captured CUDA graphs or to torch.cuda.MemPool. They keep their memory, and nothing else can use it.",
        next="Delete the CUDA graph or the torch.cuda.MemPool that owns the pool, then call torch.cuda.empty_cache():"
        f" until then the {size(reserved)} stay reserved. Or capture all graphs into one pool (the pool argument of"
        " torch.cuda.graph).",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(device, f"{pool_words(pool.pool)}: {size(pool.reserved_bytes)} reserved")
            for pool in pools[:_EVIDENCE_SHOWN]
        ],
        confidence=0.7,
    )


def _unused_cache_finding(device: Device, unused: int) -> Finding:
    """Return the finding that much of the reserved memory (`unused` bytes) is not in use at the end of the trace."""
    used = device.fragmentation.allocated_bytes
    return Finding(
        id="memory.reserved",
        severity=Severity.INFO,
        title=f"{size(unused)} of reserved memory was not in use when the snapshot was taken",
        why=f"PyTorch's allocator had reserved {size(device.reserved_bytes)} of the device, but only {size(used)} of it"
        f" ({share(used, device.reserved_bytes)}) held tensors. It keeps the rest for later allocations, so other"
        " processes and libraries cannot use it.",
        next=f"Nothing to do, unless another process or library needs this memory. {_giving_back(device, unused)}",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"most memory reserved at any time: {size(device.peak_reserved_bytes)}")],
        confidence=0.8,
    )


def _giving_back(device: Device, unused: int) -> str:
    """Return the sentences on how to give `unused` bytes back to the device, as far as `empty_cache` can release them.

    `empty_cache` cannot release free memory in segments that also hold tensors.
    """
    kept = device.fragmentation.inactive_split_bytes
    if kept >= unused:
        return (
            "torch.cuda.empty_cache() would give back none of it: all of it is in segments that also hold tensors."
            f" To make it usable for allocations of any size: {uncapitalised(defragment(device))}"
        )
    clause = f", but not the {size(kept)} in segments that also hold tensors" if kept else ""
    return (
        "In that case call torch.cuda.empty_cache() after the memory peak, which would give back"
        f" {size(unused - kept)}{clause}. If the next step needs this memory, it is reserved again."
    )
