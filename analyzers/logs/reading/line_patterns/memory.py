"""Define the patterns of log lines on memory that ran out, on a CUDA device or on the host.

The patterns match the messages of all PyTorch versions since 0.4.
"""

import re

from analyzers.case.facts import EventKind, Facts, Reason
from analyzers.logs.reading.line_patterns.pattern import Found, number, pattern, plain
from analyzers.words import size_in_bytes

SIZE = r"(\d{1,18}(?:\.\d{1,9})?) (bytes|KiB|MiB|GiB|TiB)"
MOST_BYTES = 1 << 50
"""The largest plausible size in bytes; containers print 17179869184.00 GiB if a counter falls below zero."""
PARTS = {
    "total_bytes": re.compile(rf"total capac\w*ty of {SIZE}|{SIZE} total capac"),
    "free_bytes": re.compile(rf"of which {SIZE} is free|{SIZE} free[;)]"),
    "allocated_bytes": re.compile(rf"allocated memory {SIZE} is allocated|{SIZE} already allocated"),
    "unallocated_bytes": re.compile(rf"{SIZE} is reserved by PyTorch but unallocated"),
    "process_bytes": re.compile(rf"this process has {SIZE} memory in use"),
}
_RESERVED = re.compile(rf"{SIZE} (?:reserved in total|cached)")
_OTHERS = re.compile(rf"Process \d+ has {SIZE} memory in use")
DEVICE = re.compile(r"GPU (\d{1,4})[; ]")


def _cuda_out_of_memory(match: "re.Match[str]") -> Found:
    """Return the event that reports a device that ran out of memory, with the sizes that PyTorch's message contains."""
    text = match.string
    sizes = {name: _bytes_at(expression, text) for name, expression in PARTS.items()}
    device = DEVICE.search(text)
    # Before version 2.0 the message had the sum.
    reserved, allocated = _bytes_at(_RESERVED, text), sizes["allocated_bytes"]
    if reserved is not None and allocated is not None and sizes["unallocated_bytes"] is None:
        sizes["unallocated_bytes"] = max(0, reserved - allocated)
    others = [size for amount, unit in _OTHERS.findall(text) if (size := size_in_bytes(amount, unit))]
    held = (sizes["allocated_bytes"] or 0) + (sizes["unallocated_bytes"] or 0)
    # In a container a process does not know its own number, and lists itself: then all do not fit into the device.
    is_full = bool(held and sizes["total_bytes"] and sum(others) + held > sizes["total_bytes"])
    own = min((size for size in others if size >= held), default=None) if is_full else None
    if sizes["process_bytes"] is None and own is not None:
        others.remove(own)
        sizes["process_bytes"] = own
    facts = Facts(
        reason=Reason.ALLOCATOR,
        total_bytes=sizes["total_bytes"],
        free_bytes=sizes["free_bytes"],
        allocated_bytes=sizes["allocated_bytes"],
        unallocated_bytes=sizes["unallocated_bytes"],
        process_bytes=sizes["process_bytes"],
        requested_bytes=size_in_bytes(match[1], match[2]),
        device=number(device[1]) if device else None,
        other_processes=[size for size in others if size < MOST_BYTES],
    )
    return Found(EventKind.OUT_OF_MEMORY, facts)


def _bytes_at(expression: "re.Pattern[str]", text: str) -> int | None:
    """Return the size in bytes that `expression` finds in a text; None if it finds none, or an impossible size."""
    match = expression.search(text)
    if not match:
        return None
    amount, unit = [group for group in match.groups() if group]
    return _plausible(size_in_bytes(amount, unit))


def _plausible(size: int | None) -> int | None:
    return size if size is not None and size < MOST_BYTES else None


def nccl_buffers(match: "re.Match[str]") -> Found:
    """Return the event which reports that NCCL found no device memory for its buffers."""
    asked, device = match[2] or None, match[1] or None
    facts = Facts(
        reason=Reason.NCCL_BUFFERS,
        requested_bytes=number(asked) if asked else None,
        device=number(device) if device else None,
    )
    return Found(EventKind.OUT_OF_MEMORY, facts)


def host_allocator(match: "re.Match[str]") -> Found:
    return Found(EventKind.HOST_OUT_OF_MEMORY, Facts(reason=Reason.HOST_ALLOCATOR, requested_bytes=number(match[1])))


def _killed_by_kernel(match: "re.Match[str]") -> Found:
    """Return the event that reports a process which the kernel's OOM killer ended.

    `facts.process_bytes` is its resident memory, if the line has it.
    """
    resident = re.search(r"anon-rss:(\d+)kB", match.string)
    shared = re.search(r"shmem-rss:(\d+)kB", match.string)
    # Pages of files are left out, because the kernel can drop them at any time.
    kilobytes = sum(number(m[1]) or 0 for m in (resident, shared) if m)
    facts = Facts(reason=Reason.OOM_KILLER, pid=number(match[1]), process_bytes=kilobytes * 1024 or None)
    return Found(EventKind.HOST_OUT_OF_MEMORY, facts)


def _killed_in_step(match: "re.Match[str]") -> Found:
    """Return the event that reports a Slurm task that ran out of memory, with its host."""
    facts = Facts(reason=Reason.OOM_KILLER, host=match[1], ranks=[])
    return Found(EventKind.HOST_OUT_OF_MEMORY, facts)


PATTERNS = (
    pattern("Tried to allocate", rf"[Tt]ried to allocate {SIZE}(?! of dynamic)", _cuda_out_of_memory),
    pattern("Failed to CUDA calloc", r"(?:\[(\d+)\].*)?Failed to CUDA calloc(?: async)? (\d+) bytes", nccl_buffers),
    pattern("Cuda failure", r"\[(\d+)\].*Cuda failure (?:\d+ )?'out of memory'()", nccl_buffers),
    pattern("Cuda failure", r"^(?:\[\w+\]:\s?)?()Cuda failure (?:\d+ )?'out of memory'()", nccl_buffers),
    plain("CUDA Error: out of memory", EventKind.OUT_OF_MEMORY, Reason.DRIVER_MEMORY, r"out of memory at \S*cumem"),
    pattern("you tried to allocate", r"you tried to allocate (\d+) bytes", host_allocator),
    pattern("Killed process", r"Killed process (\d+)", _killed_by_kernel),
    pattern("task=", r"oom-kill:.*\bpid=(\d+)", _killed_by_kernel),
    pattern("Out Of Memory", r"srun: error: (\S+): tasks? [\d,-]+: Out Of Memory", _killed_in_step),
    plain("oom_kill", EventKind.HOST_OUT_OF_MEMORY, Reason.OOM_KILLER, r"Detected \d+ oom[_-]kill event"),
    plain("oom-kill", EventKind.HOST_OUT_OF_MEMORY, Reason.OOM_KILLER, r"Detected \d+ oom[_-]kill event"),
    plain("job memory limit", EventKind.HOST_OUT_OF_MEMORY, Reason.OOM_KILLER, r"Exceeded (?:job|step) memory limit"),
    plain("CUDA error: out of memory", EventKind.OUT_OF_MEMORY, Reason.DRIVER_MEMORY),
    plain("STATUS_ALLOC_FAILED", EventKind.OUT_OF_MEMORY, Reason.LIBRARY_MEMORY, r"CU\w+_STATUS_ALLOC_FAILED"),
    plain("preemptively rejected", EventKind.OUT_OF_MEMORY, Reason.ALLOCATOR),
    plain("CUDA out of memory", EventKind.OUT_OF_MEMORY, Reason.ALLOCATOR),
)
