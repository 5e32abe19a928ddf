"""Compute the device memory of NCCL's buffers from the connections that its log lines report.

All sizes follow NCCL's sources, which are the same in 2.18 to 2.29 unless stated (github.com/NVIDIA/nccl):
`computeBuffSizes` in src/init.cc for the buffers of the three protocols, `p2pSendSetup` and `p2pRecvSetup` in
src/transport/p2p.cc, `sendProxyConnect`, `recvProxyConnect` and `sharedNetBuffersInit` in src/transport/net.cc,
`ncclNvlsBufferSetup` in src/transport/nvls.cc.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

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
    ring = comm.channels * pair_bytes(buffers, is_read=False) * (comm.ranks > 1)
    peers = min(comm.ranks - 1, _PEERS_AT_MOST)
    return msgspec.structs.replace(comm, low_bytes=known, bytes=known + ring, high_bytes=known + ring * peers)


def _link_bytes(links: Mapping[Link, int], buffers: NcclBuffers) -> int:
    """Return the bytes that connections use on this device; a rank logs only the connections through which it sends.

    By P2P as many connections are assumed to arrive as leave; this is so in rings and trees. Connections through the
    network are logged in both directions; their buffer of LL stays on the host at the sender.
    """
    each = {
        Link.P2P: pair_bytes(buffers, is_read=False),
        Link.P2P_READ: pair_bytes(buffers, is_read=True),
        Link.NET_SEND: _rounded_up(buffers.ll128 + buffers.simple),
        Link.NET_RECEIVE: _rounded_up(buffers.ll + buffers.ll128 + buffers.simple),
    }
    return sum(count * each.get(link, 0) for link, count in links.items())


def pair_bytes(buffers: NcclBuffers, *, is_read: bool) -> int:
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
