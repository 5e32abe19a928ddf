"""Findings about memory that was taken from the device and is not in use: retries, idle cache, dead pools."""

from collections.abc import Iterator

from analyzers.memory.findings.evidence import fact, ranks_of
from analyzers.memory.model import Device
from analyzers.report import Finding, Severity
from analyzers.words import share, size

COMMON = "0.0"
IDLE_SHARE, IDLE_BYTES = 0.25, 256 << 20


def cached_findings(device: Device) -> Iterator[Finding]:
    if device.fragmentation.made_up_segments:
        return
    if device.retries:
        yield retries_finding(device)
    dead = [pool for pool in device.pools if pool.pool != COMMON and not pool.allocated_bytes]
    if sum(pool.reserved_bytes for pool in dead) >= IDLE_BYTES:
        yield dead_pool_finding(device)
    idle = device.reserved_bytes - device.fragmentation.allocated_bytes
    if idle >= max(IDLE_BYTES, IDLE_SHARE * device.reserved_bytes):
        yield reserved_finding(device, idle)


def retries_finding(device: Device) -> Finding:
    freed = sum(retry.freed_bytes for retry in device.retries)
    return Finding(
        id="memory.retries",
        severity=Severity.WARNING,
        title=f"{len(device.retries)} allocations had to wait for cached memory to be given back",
        why=f"The device was full: {size(freed)} of cached segments were returned to it to make room, which"
        " synchronises the device each time.",
        next="Leave more headroom (a smaller batch), or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[
            fact(device, f"{size(retry.freed_bytes)} given back before entry {retry.index}")
            for retry in device.retries[:4]
        ],
        confidence=0.8,
    )


def dead_pool_finding(device: Device) -> Finding:
    dead = [pool for pool in device.pools if pool.pool != COMMON and not pool.allocated_bytes]
    held = sum(pool.reserved_bytes for pool in dead)
    return Finding(
        id="memory.dead_pool",
        severity=Severity.WARNING,
        title=f"{size(held)} lie in private pools that nothing uses",
        why=f"No block is alive in {', '.join(pool.pool for pool in dead)}: pools of captured graphs or of the user"
        " keep their segments to themselves.",
        next=f"Drop the graph (or torch.cuda.MemPool) that owns them, which frees {size(held)}, or capture into one"
        " shared pool.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"pool {pool.pool}: {size(pool.reserved_bytes)} reserved") for pool in dead[:4]],
        confidence=0.7,
    )


def reserved_finding(device: Device, idle: int) -> Finding:
    used = device.fragmentation.allocated_bytes
    return Finding(
        id="memory.reserved",
        severity=Severity.INFO,
        title=f"{size(idle)} are reserved and not in use",
        why=f"{size(device.reserved_bytes)} are taken from the device, {size(used)} of them hold tensors at the end"
        f" ({share(used, device.reserved_bytes)}); another process or library cannot have the rest.",
        next="Nothing, unless something else needs it: then torch.cuda.empty_cache() after the spike gives back"
        f" {size(idle - device.fragmentation.inactive_split_bytes)}, the segments that nothing uses;"
        " garbage_collection_threshold:0.8 does so by itself.",
        ranks=ranks_of(device),
        step=device.step,
        evidence=[fact(device, f"reserved at most {size(device.peak_reserved_bytes)}")],
        confidence=0.8,
    )
