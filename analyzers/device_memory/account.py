"""Divide all memory of a device among its users: tensors, PyTorch's allocator, the CUDA context, libraries.

The numbers come from PyTorch's out-of-memory message, or from a snapshot and the driver. Memory that neither of them
explains is exact as a sum, but its division between the context and libraries is an estimate with a lower and an upper
bound.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from analyzers.device_memory.nccl import NcclBuffers, NcclProcess, largest, pair_bytes, savings
from analyzers.words import quantity, share, size, uncapitalised

GIB, MIB = 1 << 30, 1 << 20
_HALF_OF_LAST_DIGIT = 0.005
"""The rounding error of sizes in PyTorch's messages, which have two decimals: 38.78 GiB is 38.775 to 38.785 GiB."""

# Context and loaded kernels, in GiB, by how large the device is: up to V100 and T4, A10 to A100 40 GB, A100 80 GB and
# H100, larger ones. Measured on these with torch 2: 0.47 lazily loaded on A100, 0.55 on H100, 0.92 eagerly loaded.
_CONTEXT_GIB = ((34, 0.25, 0.6), (60, 0.35, 0.7), (100, 0.4, 0.95), (float("inf"), 0.5, 1.0))
_NCCL_CONNECTION_BYTES = pair_bytes(NcclBuffers(), is_read=False)
"""The bytes of a connection from an NCCL channel to a peer and back, unless the environment changes the buffers."""
_FEWER_CHANNELS, _SMALLER_BUFFER = 8, 1 << 20
"""The settings that the advice on NCCL's memory proposes.

They are the number of channels, and the bytes of a buffer for the protocol SIMPLE.
"""


class Holder(StrEnum):
    """A user of a part of a device's memory.

    Allocated through PyTorch are `tensors`, `workspaces` (of cuBLAS and cuDNN) and `communication` (buffers). `cache`
    is reserved by PyTorch but not allocated. `context` is the CUDA context with the loaded kernels. `nccl` are the
    buffers of NCCL's connections, if a log has them; `libraries` are NCCL and other libraries of this process.
    `other_processes` includes the driver. `outside` stands for libraries and other processes together, if the known
    sizes do not separate them. `free` is not in use.
    """

    TENSORS = "tensors"
    WORKSPACES = "workspaces"
    COMMUNICATION = "communication"
    CACHE = "cache"
    CONTEXT = "context"
    NCCL = "nccl"
    LIBRARIES = "libraries"
    OUTSIDE = "outside"
    OTHER_PROCESSES = "other_processes"
    FREE = "free"


class Source(StrEnum):
    """The source of a size.

    `message`: PyTorch's message that memory ran out. `snapshot`: a memory snapshot. `driver`: the driver of the device.
    `nccl_log`: the log of NCCL. `difference`: the total of the device minus the other sizes. `typical`: an estimate for
    devices of this size.
    """

    MESSAGE = "message"
    SNAPSHOT = "snapshot"
    DRIVER = "driver"
    DIFFERENCE = "difference"
    TYPICAL = "typical"
    NCCL_LOG = "nccl_log"


_UNTRACKED = frozenset({Holder.CONTEXT, Holder.NCCL, Holder.LIBRARIES, Holder.OUTSIDE, Holder.OTHER_PROCESSES})
"""The holders of memory that no tensor uses and that PyTorch's allocator does not manage."""

HOLDER_WORDS = {
    Holder.TENSORS: "tensors",
    Holder.WORKSPACES: "cuBLAS and cuDNN workspaces, allocated through PyTorch",
    Holder.COMMUNICATION: "communication buffers, allocated through PyTorch",
    Holder.CACHE: "reserved by PyTorch, but not allocated",
    Holder.CONTEXT: "CUDA context and loaded kernels",
    Holder.NCCL: "buffers of NCCL's connections",
    Holder.LIBRARIES: "NCCL and other libraries of this process",
    Holder.OUTSIDE: "NCCL, other libraries and other processes",
    Holder.OTHER_PROCESSES: "other processes and the driver",
    Holder.FREE: "free",
}
_SOURCE_WORDS = {
    Source.MESSAGE: "from PyTorch's message",
    Source.SNAPSHOT: "from the snapshot",
    Source.DRIVER: "from the driver",
    Source.NCCL_LOG: "by the connections and channels in NCCL's log",
    Source.TYPICAL: "an estimate for a device of this size",
}

_FEWER_LIBRARY_BUFFERS = (
    "Create fewer process groups, or give NCCL less memory: each process group has its own connections, at least one"
    f" for each channel, and a connection to a peer and back takes {size(_NCCL_CONNECTION_BYTES)}. Set NCCL_MAX_CTAS=8"
    " for fewer channels (NCCL_MAX_NCHANNELS=8 in NCCL before 2.17), NCCL_BUFFSIZE=1048576 for smaller buffers, and"
    " NCCL_NVLS_ENABLE=0 to do without the buffers of NVLink SHARP. With NCCL_DEBUG=INFO in the job's"
    " log, this report says how much memory each communicator takes"
)
FEWER_PROCESSES = (
    "List the processes on the device with nvidia-smi, and end those that do not belong there: a process of an earlier"
    " job keeps its memory until it ends. If other ranks of this job are listed on device 0, call"
    " torch.cuda.set_device(LOCAL_RANK) before the first use of CUDA: otherwise each rank has a CUDA context there"
)
_LAZY_MODULES = "Set CUDA_MODULE_LOADING=LAZY, so that only kernels that are used are loaded"


class MemoryPart(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a device's memory that one `holder` uses.

    `bytes` is the best estimate; `low_bytes` and `high_bytes` are its lower and upper bound. `source` is where it is
    from.
    """

    holder: Holder
    bytes: int
    low_bytes: int
    high_bytes: int
    source: Source


class KnownMemory(NamedTuple):
    """The known sizes in a device's memory, in bytes.

    `cached` is reserved by PyTorch's allocator but not allocated. `workspaces` and `communication` are parts of
    `allocated`. `process` is the memory of this process, libraries included (None: unknown). `rounded`: the sizes were
    printed with two decimals.
    """

    total: int
    free: int
    allocated: int
    cached: int
    process: int | None = None
    workspaces: int = 0
    communication: int = 0
    rounded: bool = False


class Range(NamedTuple):
    """A number of bytes that is not known exactly: the best estimate, with a lower and an upper bound."""

    low: int
    best: int
    high: int

    def less(self, other: "Range") -> "Range":
        """Return this range minus `other`; bounds below zero become zero."""
        low, best, high = self.low - other.high, self.best - other.best, self.high - other.low
        return Range(max(low, 0), max(best, 0), max(high, 0))

    def within(self, other: "Range") -> "Range":
        """Return this range with each of its three numbers limited to the corresponding number of `other`."""
        return Range(*map(min, self, other))

    def part(self, holder: Holder, source: Source) -> MemoryPart:
        """Return the memory part of `holder` with this range as its size; `source` is the source of the size."""
        return MemoryPart(holder=holder, bytes=self.best, low_bytes=self.low, high_bytes=self.high, source=source)


def account_for(known: KnownMemory) -> list[MemoryPart]:
    """Return the parts of a device's memory, which sum to its total except for rounding.

    Example: of 39.38 GiB 0.47 is free, this process uses 38.78, 35.59 is allocated and 2.10 more is reserved. Outside
    of PyTorch's allocator the process has 38.78 - 35.59 - 2.10 = 1.09 GiB (1.08 to 1.11): a context of 0.35 to 0.7
    and 0.38 to 0.76 for NCCL and other libraries. Other processes have 39.38 - 0.47 - 38.78 = 0.13 GiB.
    """
    return [part for part in parts(known) if part.high_bytes > 0]


def parts(known: KnownMemory) -> Iterator[MemoryPart]:
    """Yield the parts of a device's memory, including those of 0 bytes."""
    source = Source.MESSAGE if known.rounded else Source.SNAPSHOT
    exact = measured if known.rounded else precise
    allocated, cached, free = exact(known.allocated), exact(known.cached), exact(known.free)
    inner = precise(known.workspaces + known.communication)
    yield allocated.less(inner).part(Holder.TENSORS, source)
    yield precise(known.workspaces).part(Holder.WORKSPACES, source)
    yield precise(known.communication).part(Holder.COMMUNICATION, source)
    yield cached.part(Holder.CACHE, source)
    used = exact(known.total).less(free)
    process = used if known.process is None else exact(known.process)
    outside = process.less(allocated).less(cached)
    context = _context_of(known.total).within(outside)
    yield context.part(Holder.CONTEXT, Source.TYPICAL)
    rest = Holder.OUTSIDE if known.process is None else Holder.LIBRARIES
    yield outside.less(context).part(rest, Source.DIFFERENCE)
    if known.process is not None:
        yield used.less(process).part(Holder.OTHER_PROCESSES, Source.DIFFERENCE)
    yield free.part(Holder.FREE, source if known.rounded else Source.DRIVER)


def with_nccl(account: Sequence[MemoryPart], process: NcclProcess) -> list[MemoryPart]:
    """Return a device's account with NCCL's buffers as a separate part, from the log of `process`.

    The buffers are subtracted from the sum of the context and the libraries; then the context is estimated again from
    the rest. Example: of 4 GiB outside the allocator 2.06 GiB are NCCL's buffers, so the context (0.4 to 0.95 GiB) and
    other libraries have 1.94 GiB.
    """
    by_holder = {part.holder: part for part in account}
    context, rest = by_holder.get(Holder.CONTEXT), by_holder.get(Holder.LIBRARIES) or by_holder.get(Holder.OUTSIDE)
    if context is None or rest is None or not process.high_bytes:
        return list(account)
    outside = Range(
        context.high_bytes + rest.low_bytes, context.bytes + rest.bytes, context.low_bytes + rest.high_bytes
    )
    buffers = Range(process.low_bytes, process.bytes, process.high_bytes).within(outside)
    left = outside.less(buffers)
    context_left = _context_of(sum(part.bytes for part in account)).within(left)
    new = [
        context_left.part(Holder.CONTEXT, Source.TYPICAL),
        buffers.part(Holder.NCCL, Source.NCCL_LOG),
        left.less(context_left).part(rest.holder, Source.DIFFERENCE),
    ]
    at = account.index(context)
    return [
        *account[:at],
        *(part for part in new if part.high_bytes),
        *(p for p in account[at:] if p not in (context, rest)),
    ]


def _context_of(total: int) -> Range:
    """Return how many bytes the CUDA context and loaded kernels usually take on a device of `total` bytes."""
    low, high = next((low, high) for most, low, high in _CONTEXT_GIB if total <= most * GIB)
    return Range(round(low * GIB), round((low + high) / 2 * GIB), round(high * GIB))


def precise(count: int) -> Range:
    """Return an exact number of bytes as a range whose bounds are equal."""
    return Range(count, count, count)


def measured(count: int) -> Range:
    """Return a size in bytes with the bounds of its rounding: PyTorch prints two decimals in GiB, MiB or KiB."""
    unit = next(unit for unit in (GIB, MIB, 1 << 10, 1) if count >= unit or unit == 1)
    margin = round(_HALF_OF_LAST_DIGIT * unit) if unit > 1 else 0
    return Range(max(count - margin, 0), count, count + margin)


_LARGE_SHARE, _LARGE_BYTES = 0.05, 3 * GIB // 2
"""The smallest share of the device, and the smallest number of bytes, outside PyTorch's allocator for a finding.

Both must be exceeded.
"""


def untracked(account: Sequence[MemoryPart]) -> int:
    """Return how many bytes of a device's memory are not managed by PyTorch's allocator.

    They belong to the CUDA context, to libraries and to other processes. `account` has all parts of the device's
    memory.
    """
    return sum(part.bytes for part in account if part.holder in _UNTRACKED)


def is_large(account: Sequence[MemoryPart]) -> bool:
    """Return whether a device has unusually much memory outside PyTorch's allocator.

    The usual amount is the memory of the CUDA context and one communicator. `account` has all parts of the device's
    memory.
    """
    total = sum(part.bytes for part in account)
    return untracked(account) >= max(_LARGE_BYTES, _LARGE_SHARE * total)


def would_fit(account: Sequence[MemoryPart], requested: int) -> bool:
    """Return whether a failed request of `requested` bytes would fit if libraries and other processes had no memory.

    `account` has all parts of the device's memory.
    """
    given_back = {Holder.NCCL, Holder.LIBRARIES, Holder.OUTSIDE, Holder.OTHER_PROCESSES, Holder.FREE}
    return sum(part.bytes for part in account if part.holder in given_back) >= requested


def _largest_untracked(account: Sequence[MemoryPart]) -> MemoryPart:
    """Return the largest part of a device's memory that PyTorch's allocator does not manage.

    `account` has all parts of the device's memory.
    """
    return max((part for part in account if part.holder in _UNTRACKED), key=lambda part: part.bytes)


def untracked_title(account: Sequence[MemoryPart]) -> str:
    """Return the title of a finding on a device's memory outside PyTorch's allocator.

    `account` has all parts of the device's memory.
    """
    outside, total = untracked(account), sum(part.bytes for part in account)
    return f"{size(outside)} of GPU memory ({share(outside, total)}) is in use, but not by PyTorch's allocator"


def untracked_reason(account: Sequence[MemoryPart], *, decisive: bool) -> str:
    """Return a text on the users of a device's memory outside PyTorch's allocator, with the bounds of each size.

    `account` has all parts of the device's memory. `decisive`: a request that failed would have fitted into this
    memory.
    """
    parts = f"It consists of {'; '.join(in_words(part) for part in account if part.holder in _UNTRACKED)}."
    request = " The request that failed would have fitted into the memory that libraries and other processes use."
    return parts + request * decisive


def in_words(part: MemoryPart) -> str:
    """Return the part as text, such as `free: 0.6 GiB (0.4 GiB to 0.8 GiB, from the driver)`."""
    return f"{HOLDER_WORDS[part.holder]}: {size(part.bytes)} ({bounds(part)}{source_words(part)})"


def source_words(part: MemoryPart) -> str:
    if part.source is not Source.DIFFERENCE:
        return _SOURCE_WORDS[part.source]
    if part.holder is Holder.LIBRARIES:
        return "what remains of this process's memory"
    return "what remains of the device's memory in use"


def bounds(part: MemoryPart) -> str:
    """Return the lower and upper bound of a part of memory as `375 MiB to 755 MiB, `; empty for an exact size."""
    low, high = size(part.low_bytes), size(part.high_bytes)
    return f"{low} to {high}, " if low != high else ""


def untracked_advice(account: Sequence[MemoryPart], process: NcclProcess | None = None) -> str:
    """Return a sentence on how to reduce the largest part of a device's memory outside PyTorch's allocator.

    `account` has all parts of the device's memory; `process` has the facts from NCCL's log, if they are known.
    """
    holder = _largest_untracked(account).holder
    levers = _nccl_levers(process) if process else []
    buffers = ". Or ".join([levers[0], *map(uncapitalised, levers[1:])]) if levers else _FEWER_LIBRARY_BUFFERS
    advice = {
        Holder.OTHER_PROCESSES: FEWER_PROCESSES,
        Holder.OUTSIDE: f"{FEWER_PROCESSES}. If no other process is listed: {uncapitalised(buffers)}",
        Holder.CONTEXT: _LAZY_MODULES,
    }
    return f"{advice.get(holder, buffers)}."


def _nccl_levers(process: NcclProcess) -> list[str]:
    """Return the settings that make NCCL's buffers smaller, with the bytes that each saves, the most saving first."""
    saved = savings(process, _FEWER_CHANNELS, _SMALLER_BUFFER)
    words = {
        "nvls": f"Set NCCL_NVLS_ENABLE=0: without NVLink SHARP its buffers of {size(saved['nvls'])} are not needed,"
        " but all-reduces within a node may be slower",
        "channels": f"Set NCCL_MAX_CTAS={_FEWER_CHANNELS}: fewer channels save about {size(saved['channels'])}, and"
        " collectives of large messages may be slower",
        "buffers": f"Set NCCL_BUFFSIZE={_SMALLER_BUFFER}: smaller buffers save {size(saved['buffers'])}",
    }
    return [words[name] for name in sorted(saved, key=lambda name: -saved[name]) if saved[name]]


def nccl_words(process: NcclProcess) -> list[str]:
    """Return one line for each communicator of a process that has buffers, the largest first."""
    return [
        f"NCCL communicator {comm.comm} of {quantity(comm.ranks, 'rank')}: {size(comm.bytes)} in"
        f" {quantity(sum(comm.links.values()), 'connection')} of {quantity(comm.channels, 'channel')}"
        + (f", of which {size(comm.nvls_bytes)} for NVLink SHARP" if comm.nvls_bytes else "")
        for comm in largest(process)
    ]
