"""Read from NCCL's own log lines (NCCL_DEBUG=INFO) which communicators a process has, and how they are connected.

gpu-17:1000:5000 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read
gpu-17:1000:5000 [0] NCCL INFO 24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, ...
gpu-17:1000:5000 [0] NCCL INFO ncclCommInitRank comm 0x55d0 rank 0 nranks 2 cudaDev 0 ... - Init COMPLETE

Before each text are the host, the process, the thread and the device. Formats: src/init.cc and src/transport of
github.com/NVIDIA/nccl, tags v2.18.1-1 to v2.29.7-1.
"""

import re
from collections import Counter
from dataclasses import dataclass, field

from analyzers.device_memory import Link, NcclBuffers, NcclCommunicator, NcclProcess, with_bytes

MARK = b"NCCL INFO "
LINE = re.compile(
    rb"NCCL INFO (Channel \d{2}(?:/\d)? : \d|\d{1,4} coll channels|NVLS comm|NCCL_\w{0,6}BUFFSIZE set|P2P Chunksize|"
    rb"(?:\w{1,40} )?comm 0x)([^\r\n]{0,300})"
)
_HEADER = re.compile(rb":(\d{1,9}):(\d{1,9}) \[(\d{1,3})\] $")
_HEADER_BYTES, _HOST_BYTES = 32, 255
_HOST_BORDERS = (b" ", b"\t", b"\n", b"\r", b":", b"[", b"]")
_OTHER_LIBRARY = b"RCCL version"
"""The text by which AMD's library is recognised: it prints the same lines as NCCL, but its buffers have other sizes."""
_CHANNEL = re.compile(
    r"Channel \d+(?:/\d)? : (\d{1,6})\[\w+\] -> (\d{1,6})\[\w+\] (\[send\] |\[receive\] )?via (.{1,80})"
)
_COUNTS = re.compile(
    r"(\d{1,4}) coll channels, (?:\d{1,4} collnet channels, )?(?:(\d{1,4}) nvls channels, )?(\d{1,4}) p2p channels"
)
COMPLETE = re.compile(r"comm (0x[0-9a-f]{1,16}) rank (\d{1,6}) nranks (\d{1,6}) cudaDev .{0,200}Init COMPLETE")
NVLS = re.compile(r"NVLS comm (0x[0-9a-f]{1,16}) .{0,200}nvlsTotalSize (\d{1,15})")
_SETTING = re.compile(r"(?:NCCL_(LL_|LL128_|)BUFFSIZE set by environment to|P2P Chunksize set to) (\d{1,12})\b")
_SETTING_NAMES = {"": "simple", "LL_": "ll", "LL128_": "ll128", None: "chunk"}
_CHANNELS_AT_MOST = 128
"""The most channels that a line can state; a line with more is damaged (MAXCHANNELS is 64)."""
_PROCESSES_AT_MOST, _COMMUNICATORS_AT_MOST = 1 << 14, 1 << 10


@dataclass
class Process:
    """The communicators and connections of one process so far; `line` is the line of its first communicator.

    `counts` has the numbers of channels that each thread printed last; they belong to its next communicator. `links`
    counts the connections by communicator (empty: not created yet, or one of several) and kind.
    """

    device: int
    line: int = 0
    sizes: dict[str, int] = field(default_factory=dict)
    counts: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    comms: dict[str, NcclCommunicator] = field(default_factory=dict)
    links: Counter[tuple[int, int, int, Link]] = field(default_factory=Counter)
    """{(thread, own rank, peer, kind): number of connections}."""
    threads: dict[str, int] = field(default_factory=dict)
    """{communicator: the thread that created it}."""
    nvls: dict[str, int] = field(default_factory=dict)


@dataclass
class NcclLines:
    """The processes with NCCL lines in one log, by host and process id."""

    processes: dict[tuple[str, int], Process] = field(default_factory=dict)
    is_other_library: bool = False
    has_links: bool = False

    def look(self, chunk: bytes, first: int) -> None:
        """Read the NCCL lines of a chunk of the log, whose first line has the number `first`."""
        self.is_other_library = self.is_other_library or _OTHER_LIBRARY in chunk
        if MARK not in chunk:
            return
        counted = 0
        for match in LINE.finditer(chunk):
            first += chunk.count(b"\n", counted, match.start())
            counted = match.start()
            header = _header_before(chunk, match.start())
            if header and (header[:2] in self.processes or len(self.processes) < _PROCESSES_AT_MOST):
                process = self.processes.setdefault(header[:2], Process(header[3]))
                self.take(process, header[2], (match[1] + match[2]).decode("utf-8", "replace"), first)

    def take(self, process: Process, thread: int, text: str, number: int) -> None:
        """Store what one line says about a process; `number` is the line's number, `text` the text after its header."""
        if channel := _CHANNEL.match(text):
            self.has_links = True
            _add_link(process, thread, channel)
        elif counts := _COUNTS.match(text):
            process.counts[thread] = (int(counts[1]), int(counts[2] or 0), int(counts[3]))
        elif complete := COMPLETE.search(text):
            process.line = process.line or number
            _add_communicator(process, thread, complete)
        elif nvls := NVLS.match(text):
            process.nvls[nvls[1]] = int(nvls[2])
        elif setting := _SETTING.match(text):
            process.sizes[_SETTING_NAMES[setting[1]]] = int(setting[2])

    def found(self) -> list[NcclProcess]:
        """Return the facts about NCCL's memory in the log, one item for each process with a communicator."""
        if self.is_other_library:
            return []
        return [
            with_bytes(described(process, host, pid), is_complete=self.has_links)
            for (host, pid), process in self.processes.items()
            if process.comms
        ]


def _header_before(chunk: bytes, end: int) -> tuple[str, int, int, int] | None:
    """Return (host, process, thread, device) of the header that ends at `end` of a chunk; None if there is none."""
    numbers = _HEADER.search(chunk, max(0, end - _HEADER_BYTES), end)
    if not numbers:
        return None
    # Not by an expression: on a long word it would be tried from each letter.
    before = chunk[max(0, numbers.start() - _HOST_BYTES) : numbers.start()]
    host = before[max(before.rfind(border) for border in _HOST_BORDERS) + 1 :].decode("utf-8", "replace")
    return host, int(numbers[1]), int(numbers[2]), int(numbers[3])


def _add_link(process: Process, thread: int, channel: "re.Match[str]") -> None:
    """Count one connection: one through which the rank sends, or one through which it receives over a network."""
    source, target, direction, transport = int(channel[1]), int(channel[2]), channel[3], channel[4]
    own, peer = (target, source) if direction == "[receive] " else (source, target)
    process.links[thread, own, peer, link_of(transport, direction)] += 1


def link_of(transport: str, direction: str | None) -> Link:
    """Return the kind of a connection by the words after `via`, such as `P2P/CUMEM/read` or `NET/IB/0/GDRDMA`."""
    if transport.startswith("P2P/"):
        return Link.P2P_READ if "/read" in transport else Link.P2P
    if "GDRDMA" not in transport:
        return Link.HOST
    if "/Shared" in transport:
        return Link.NET_SHARED
    return Link.NET_RECEIVE if direction == "[receive] " else Link.NET_SEND


def _add_communicator(process: Process, thread: int, complete: "re.Match[str]") -> None:
    """Add a communicator that is complete, with the channels that its thread printed before."""
    counts = process.counts.pop(thread, None)
    if counts is None or max(counts) > _CHANNELS_AT_MOST or len(process.comms) >= _COMMUNICATORS_AT_MOST:
        return
    comm, rank, ranks = complete[1], int(complete[2]), int(complete[3])
    channels, nvls, p2p = counts
    process.comms[comm] = NcclCommunicator(
        comm=comm, rank=rank, ranks=ranks, channels=channels, nvls_channels=nvls, p2p_channels=p2p
    )
    process.threads[comm] = thread


def described(process: Process, host: str, pid: int) -> NcclProcess:
    """Return the facts that the log shows about one process; each connection is assigned to its communicator."""
    links: dict[str, Counter[Link]] = {}
    for (thread, own, peer, link), count in process.links.items():
        links.setdefault(owner(process, thread, own, peer), Counter())[link] += count
    comms = list(process.comms.values())
    return NcclProcess(
        # The largest communicator is usually that of the whole job, so its ranks are global.
        rank=max(comms, key=lambda comm: comm.ranks).rank,
        device=process.device,
        host=host,
        pid=pid,
        line=process.line,
        buffers=NcclBuffers(**process.sizes),
        communicators=[_with_links(comm, links.get(comm.comm, {}), process.nvls.get(comm.comm, 0)) for comm in comms],
        other_links=dict(links.get("", {})),
    )


def _with_links(comm: NcclCommunicator, links: dict[Link, int], nvls_bytes: int) -> NcclCommunicator:
    """Return a communicator with the number of its connections and the size of its buffer for NVLink SHARP."""
    return NcclCommunicator(
        comm=comm.comm,
        rank=comm.rank,
        ranks=comm.ranks,
        channels=comm.channels,
        nvls_channels=comm.nvls_channels,
        p2p_channels=comm.p2p_channels,
        links=dict(links),
        nvls_bytes=nvls_bytes,
    )


def owner(process: Process, thread: int, own: int, peer: int) -> str:
    """Return the communicator of a connection; empty if it may be one of several.

    Until NCCL 2.21 the thread that creates a communicator also connects it. Since then another thread connects it at
    the first use; in this case the communicator must have the ranks at both ends.
    """
    possible = [comm.comm for comm in process.comms.values() if comm.rank == own and peer < comm.ranks]
    created_here = [comm for comm in possible if process.threads[comm] == thread]
    candidates = created_here or possible
    return candidates[0] if len(candidates) == 1 else ""
