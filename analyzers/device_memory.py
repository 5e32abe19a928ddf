"""Compute the device memory of NCCL's buffers from the connections that its log lines report.

All sizes follow NCCL's sources, which are the same in 2.18 to 2.29 unless stated (github.com/NVIDIA/nccl):
`computeBuffSizes` in src/init.cc for the buffers of the three protocols, `p2pSendSetup` and `p2pRecvSetup` in
src/transport/p2p.cc, `sendProxyConnect`, `recvProxyConnect` and `sharedNetBuffersInit` in src/transport/net.cc,
`ncclNvlsBufferSetup` in src/transport/nvls.cc.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from analyzers.words import quantity, share, size, uncapitalised

MIB = 1 << 20
_GRANULARITY = 2 * MIB
"""NCCL rounds up the size of buffers that processes share to a multiple of this (CUDA_IPC_MIN), as the driver does."""
_HEADER_BYTES = 4096
"""The bytes of the flags beside each buffer: `ncclSendMem` and `ncclRecvMem` in src/include/comm.h (MEM_ALIGN)."""
_SHARED_SLOTS = 16
"""The chunks of each channel in a buffer for sends between nodes: NCCL_SHARED_STEPS in src/include/device.h."""
_PEERS_AT_MOST = 4
"""The most peers of a rank in one channel: the next rank of the ring, and the parent and two children in the tree."""


class Link(StrEnum):
    """The way in which a connection of NCCL transports data, which decides where its buffers are.

    `p2p` and `p2p_read` connect two devices directly; with `p2p_read` the receiver reads from the sender's buffer.
    `net_send`, `net_receive` and `net_shared` use a network with GPUDirect RDMA; with `net_shared`, all connections
    share the same buffers. `host` has its buffers in host memory: shared memory, or a network without GPUDirect RDMA.
    """

    P2P = "p2p"
    P2P_READ = "p2p_read"
    NET_SEND = "net_send"
    NET_RECEIVE = "net_receive"
    NET_SHARED = "net_shared"
    HOST = "host"


class NcclBuffers(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes in bytes of the buffers of one connection of NCCL.

    `ll`, `ll128` and `simple` are the buffers for NCCL's three protocols, and `chunk` is one chunk of a send. The
    default sizes for LL and LL128 are 8 steps x 512 threads x 8 lines x 16 bytes and 8 steps x 640 threads x 120 words
    x 8 bytes. The environment variables NCCL_LL_BUFFSIZE, NCCL_LL128_BUFFSIZE and NCCL_BUFFSIZE change the three sizes.
    """

    ll: int = 524288
    ll128: int = 4915200
    simple: int = 4194304
    chunk: int = 131072


class NcclCommunicator(msgspec.Struct, frozen=True, kw_only=True):
    """An NCCL communicator, as one of its ranks logged it, with the device memory of its buffers.

    `comm` is its address in the process, `rank` is the rank within it, and `ranks` is the number of its ranks.
    `channels` is the number of channels for collectives, `p2p_channels` the number for sends, and `nvls_channels` the
    number for NVLink SHARP. `links` has the number of connections of each kind. `nvls_bytes` is the size of the buffer
    for NVLink SHARP. `bytes` is the best estimate of the memory of all its buffers, between `low_bytes` and
    `high_bytes`.
    """

    comm: str
    rank: int
    ranks: int
    channels: int
    nvls_channels: int = 0
    p2p_channels: int = 0
    links: dict[Link, int] = {}
    nvls_bytes: int = 0
    low_bytes: int = 0
    bytes: int = 0
    high_bytes: int = 0


class NcclProcess(msgspec.Struct, frozen=True, kw_only=True):
    """The device memory of NCCL's buffers in one process, computed from the process's log.

    `rank` is the rank within its largest communicator (None: unknown). `path` and `line` are the position in the logs
    of its first communicator. `buffers` has the sizes of a connection's buffers. `communicators` has all communicators
    that were ever created, including those that were destroyed. `other_links` are connections that may belong to any of
    several communicators. `bytes` is the best estimate of the memory of all buffers, between `low_bytes` and
    `high_bytes`.
    """

    rank: int | None
    device: int
    host: str
    pid: int
    path: str = ""
    line: int = 0
    buffers: NcclBuffers = NcclBuffers()
    communicators: list[NcclCommunicator] = []
    other_links: dict[Link, int] = {}
    low_bytes: int = 0
    bytes: int = 0
    high_bytes: int = 0


def with_bytes(process: NcclProcess, *, is_complete: bool) -> NcclProcess:
    """Return the process and its communicators with their bytes filled in.

    `is_complete` says whether the log reports connections at all. If it does, a communicator without any has none yet,
    because NCCL connects at the first use since 2.22. Otherwise the number of channels gives a range.
    """
    measured = [_with_range(comm, process.buffers, is_complete=is_complete) for comm in process.communicators]
    rest = _link_bytes(process.other_links, process.buffers) + _shared_bytes(process)
    low, best, high = (
        rest + sum(getattr(comm, name) for comm in measured) for name in ("low_bytes", "bytes", "high_bytes")
    )
    return msgspec.structs.replace(process, communicators=measured, low_bytes=low, bytes=best, high_bytes=high)


def _with_range(comm: NcclCommunicator, buffers: NcclBuffers, *, is_complete: bool) -> NcclCommunicator:
    """Return the communicator with its bytes: exact from its connections, else a range from its channels.

    Example: 24 channels among 8 ranks, without lines on connections: none to 24 x 4 peers x 12 MiB = 1152 MiB, and
    24 x 12 MiB = 288 MiB for the ring alone.
    """
    known = comm.nvls_bytes + _link_bytes(comm.links, buffers)
    if is_complete:
        return msgspec.structs.replace(comm, low_bytes=known, bytes=known, high_bytes=known)
    ring = comm.channels * _pair_bytes(buffers, is_read=False) * (comm.ranks > 1)
    peers = min(comm.ranks - 1, _PEERS_AT_MOST)
    return msgspec.structs.replace(comm, low_bytes=known, bytes=known + ring, high_bytes=known + ring * peers)


def _link_bytes(links: Mapping[Link, int], buffers: NcclBuffers) -> int:
    """Return the bytes that connections use on this device; a rank logs only the connections through which it sends.

    By P2P as many connections are assumed to arrive as leave; this is so in rings and trees. Connections through the
    network are logged in both directions; their buffer of LL stays on the host at the sender.
    """
    each = {
        Link.P2P: _pair_bytes(buffers, is_read=False),
        Link.P2P_READ: _pair_bytes(buffers, is_read=True),
        Link.NET_SEND: _rounded_up(buffers.ll128 + buffers.simple),
        Link.NET_RECEIVE: _rounded_up(buffers.ll + buffers.ll128 + buffers.simple),
    }
    return sum(count * each.get(link, 0) for link, count in links.items())


def _pair_bytes(buffers: NcclBuffers, *, is_read: bool) -> int:
    """Return the bytes that one rank uses for two P2P connections: the one to a peer, and the one back.

    The receiver has all three buffers; if it reads from the sender (`is_read`), the buffer of SIMPLE is at the sender.
    By default both cases give 12 MiB: 2 + 10, or 6 + 6.
    """
    sent = buffers.simple * is_read
    received = buffers.ll + buffers.ll128 + buffers.simple - sent
    return _rounded_up(sent + _HEADER_BYTES) + _rounded_up(received + _HEADER_BYTES)


def _shared_bytes(process: NcclProcess) -> int:
    """Return the bytes of the two buffers for sends and receives between nodes, which all connections share."""
    shared = [process.other_links, *(comm.links for comm in process.communicators)]
    if not any(Link.NET_SHARED in links for links in shared):
        return 0
    channels = max((comm.p2p_channels for comm in process.communicators), default=0)
    return 2 * _rounded_up(channels * _SHARED_SLOTS * process.buffers.chunk)


def _rounded_up(count: int) -> int:
    return -(-count // _GRANULARITY) * _GRANULARITY


def largest(process: NcclProcess) -> Sequence[NcclCommunicator]:
    return sorted((comm for comm in process.communicators if comm.high_bytes), key=lambda comm: -comm.bytes)


def savings(process: NcclProcess, channels: int, simple: int) -> dict[str, int]:
    """Return how many bytes three settings save: {"nvls": no NVLink SHARP, "channels": ..., "buffers": ...}.

    `channels` is the new limit of channels of a communicator, and its connections are taken to shrink in proportion;
    `simple` is the new size of the buffer for the protocol SIMPLE in bytes.
    """
    smaller = msgspec.structs.replace(process.buffers, simple=min(simple, process.buffers.simple))
    links = [(comm.links, comm.channels) for comm in process.communicators] + [(process.other_links, 0)]
    return {
        "nvls": sum(comm.nvls_bytes for comm in process.communicators),
        "channels": sum(_link_bytes(of, process.buffers) * max(n - channels, 0) // max(n, 1) for of, n in links),
        "buffers": sum(_link_bytes(of, process.buffers) - _link_bytes(of, smaller) for of, _ in links),
    }


def process_of(processes: Sequence[NcclProcess], rank: int | None, device: int | None) -> NcclProcess | None:
    """Return the process of a rank (the last one after a restart); without a rank, the only process on `device`."""
    if rank is not None:
        return next((one for one in reversed(processes) if one.rank == rank), None)
    on_device = [one for one in processes if one.device == device]
    return on_device[0] if len(on_device) == 1 else None


# Divide all memory of a device among its users: tensors, PyTorch's allocator, the CUDA context, libraries.
#
# The numbers come from PyTorch's out-of-memory message, or from a snapshot and the driver. Memory that neither of
# them explains is exact as a sum, but its division between the context and libraries is an estimate with a lower and
# an upper bound.

GIB = 1 << 30
_HALF_OF_LAST_DIGIT = 0.005
"""The rounding error of sizes in PyTorch's messages, which have two decimals: 38.78 GiB is 38.775 to 38.785 GiB."""

# Context and loaded kernels, in GiB, by how large the device is: up to V100 and T4, A10 to A100 40 GB, A100 80 GB and
# H100, larger ones. Measured on these with torch 2: 0.47 lazily loaded on A100, 0.55 on H100, 0.92 eagerly loaded.
_CONTEXT_GIB = ((34, 0.25, 0.6), (60, 0.35, 0.7), (100, 0.4, 0.95), (float("inf"), 0.5, 1.0))
_NCCL_CONNECTION_BYTES = _pair_bytes(NcclBuffers(), is_read=False)
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

    A request that was refused although enough was free failed for another reason.
    """
    if sum(part.bytes for part in account if part.holder is Holder.FREE) >= requested:
        return False
    given_back = {Holder.NCCL, Holder.LIBRARIES, Holder.OUTSIDE, Holder.OTHER_PROCESSES, Holder.FREE}
    return sum(part.bytes for part in account if part.holder in given_back) >= requested


def untracked_title(account: Sequence[MemoryPart]) -> str:
    outside, total = untracked(account), sum(part.bytes for part in account)
    return f"{size(outside)} of GPU memory ({share(outside, total)}) is in use, but not by PyTorch's allocator"


def untracked_reason(account: Sequence[MemoryPart], *, decisive: bool) -> str:
    """Return a text on the users of a device's memory outside PyTorch's allocator, with the bounds of each size.

    `account` has all parts of the device's memory. `decisive`: a request that failed would fit if libraries and
    other processes had no memory.
    """
    parts = f"It consists of {'; '.join(part_text(part) for part in account if part.holder in _UNTRACKED)}."
    request = " Without the memory of libraries and other processes the request that failed would fit."
    return parts + request * decisive


def part_text(part: MemoryPart) -> str:
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
    holder = max((part for part in account if part.holder in _UNTRACKED), key=lambda part: part.bytes).holder
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
