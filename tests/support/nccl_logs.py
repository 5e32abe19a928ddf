"""Logs as NCCL writes them with NCCL_DEBUG=INFO, by its sources v2.18.6 to v2.29.7, with the device memory they imply.

The bytes in `CASES` were computed by hand from the sources, not with the code that they test. A buffer for P2P is
rounded up to 2 MiB: 2 MiB at the sender and 10 MiB at the receiver, or 6 MiB at both where the receiver reads.
"""

from collections.abc import Iterator
from typing import NamedTuple

MIB = 1 << 20


class Case(NamedTuple):
    """A log, and for each rank the bytes (low, best, high) of NCCL's buffers; `ranks` is empty where none is known."""

    name: str
    text: str
    ranks: dict[int, tuple[int, int, int]]


def exact(mebibytes: int) -> tuple[int, int, int]:
    return (mebibytes * MIB,) * 3


def head(rank: int, tid: int = 5, host: str = "gpu-17", prefix: str = "") -> str:
    return f"{prefix}{host}:{1000 + rank}:{tid}{rank:03d} [{rank}] NCCL INFO "


def channels(rank: int, text: str, count: int) -> Iterator[str]:
    for channel in range(count):
        yield head(rank) + f"Channel {channel:02d}/0 : {text}"


def init(
    rank: int, ranks: int, counts: str, *, call: str = "", tid: int = 5, comm: str = "0x55d0", tail: str = "", **at
) -> list[str]:
    """Return the lines at the end of a communicator's creation; `call` is empty before 2.21."""
    about = f"{call}comm {comm}{rank:x} rank {rank} nranks {ranks} cudaDev {rank} nvmlDev {rank} busId {rank}a000"
    return [
        head(rank, tid, **at) + f"{counts} p2p channels per peer",
        head(rank, tid, **at) + f"{about} {tail or 'commId 0xab55a18c6f2a4343'} - Init COMPLETE",
    ]


def joined(*parts) -> str:
    return "\n".join([line for part in parts for line in ([part] if isinstance(part, str) else part)]) + "\n"


RANK_INIT, SPLIT = "ncclCommInitRankConfig ", "ncclCommSplit "
OLD = "24 coll channels, 0 nvls channels, 32 p2p channels, 32"
NEW = "24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 32"
SMALL = "2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 2"
RING = [f"Channel {c:02d}/24 :    0   1" for c in range(24)]

CASES = [
    Case(
        "two A100, 2.18, read",  # 24 channels x (6 + 6) MiB; the tree uses the ring's connections
        joined(
            "NCCL version 2.18.5+cuda11.8",
            *([head(0) + line for line in RING],),
            channels(0, "0[0] -> 1[1] via P2P/direct pointer/read", 24),
            channels(1, "1[1] -> 0[0] via P2P/direct pointer/read", 24),
            init(0, 2, OLD),
            init(1, 2, OLD),
        ),
        {0: exact(288), 1: exact(288)},
    ),
    Case(
        "eight H100, 2.18, NVLS",  # ring and tree: 2 x 24 x 12 MiB; 16 channels x 2 x (4 + 2 MiB) x 8 heads = 1536 MiB
        joined(
            "NCCL version 2.18.6+cuda12.1",
            *(
                [
                    *channels(r, f"{r}[{r}] -> {(r + 1) % 8}[{(r + 1) % 8}] via P2P/CUMEM", 24),
                    *channels(r, f"{r}[{r}] -> {(r - 1) % 8}[{(r - 1) % 8}] via P2P/CUMEM", 24),
                    head(r) + f"NVLS comm 0x55d0{r:x} headRank {r} nHeads 8 buffSize 4194304 memSize 2097152"
                    " nvlsPerRankSize 201326592 nvlsTotalSize 1610612736",
                    *init(r, 8, "24 coll channels, 16 nvls channels, 32 p2p channels, 32"),
                ]
                for r in range(8)
            ),
        ),
        {r: exact(2 * 24 * 12 + 1536) for r in range(8)},
    ),
    Case(
        "two nodes with GPUDirect, 2.21",  # P2P 4 x 12; send 4 x 10 (LL is on the host); receive 4 x 10
        joined(
            channels(0, "0[0] -> 1[1] via P2P/CUMEM/read", 4),
            channels(0, "0[0] -> 8[0] [send] via NET/IB/0/GDRDMA", 4),
            channels(0, "15[7] -> 0[0] [receive] via NET/IB/0/GDRDMA", 4),
            init(0, 16, "4 coll channels, 4 collnet channels, 0 nvls channels, 8 p2p channels, 1", call=RANK_INIT),
        ),
        {0: exact(4 * 12 + 4 * 10 + 4 * 10)},
    ),
    Case(
        "sockets: buffers are on the host, 2.28",
        joined(
            channels(0, "0[0] -> 1[0] [send] via NET/Socket/0", 2),
            channels(0, "1[0] -> 0[0] [receive] via NET/Socket/0", 2),
            init(0, 2, SMALL, call=RANK_INIT),
        ),
        {0: exact(0)},
    ),
    Case(
        "shared memory: buffers are on the host, 2.26",
        joined(
            [
                head(r) + f"Channel {c:02d} : {r}[{r}] -> {1 - r}[{1 - r}] via SHM/direct/direct"
                for r in (0, 1)
                for c in (0, 1)
            ],
            init(0, 2, SMALL, call=RANK_INIT),
            init(1, 2, SMALL, call=RANK_INIT),
        ),
        {0: exact(0), 1: exact(0)},
    ),
    Case(
        "smaller buffers, 2.19",  # 512 KiB + 4.7 MiB + 1 MiB + 4 KiB: 8 MiB at the receiver, 2 at the sender
        joined(
            head(0) + "NCCL_BUFFSIZE set by environment to 1048576.",
            channels(0, "0[0] -> 1[1] via P2P/IPC", 24),
            init(0, 2, OLD),
        ),
        {0: exact(240)},
    ),
    Case(
        "a communicator that is not used yet has no connection, 2.27",
        joined(
            channels(0, "0[0] -> 1[1] via P2P/CUMEM", 24),
            init(0, 2, NEW, call=RANK_INIT),
            init(0, 8, NEW, call=RANK_INIT, comm="0x77aa", tid=7),
        ),
        {0: exact(288)},
    ),
    Case(
        "world and tensor parallel, 2.23",  # 24 + 12 connections
        joined(
            channels(0, "0[0] -> 1[1] via P2P/CUMEM", 24),
            init(0, 8, NEW, call=RANK_INIT),
            [head(0, 9) + f"Channel {c:02d}/0 : 0[0] -> 1[4] via P2P/CUMEM" for c in range(12)],
            init(
                0,
                2,
                "12 coll channels, 12 collnet channels, 0 nvls channels, 16 p2p channels, 8",
                call=SPLIT,
                tid=9,
                comm="0x99bb",
                tail="parent 0x55d00 splitCount 1 color 0 key 0",
            ),
        ),
        {0: exact(36 * 12)},
    ),
    Case(
        "only the lines of init are left, eight ranks",  # ring 24 x 12; at most 4 peers a channel
        joined(init(0, 8, OLD)),
        {0: (0, 288 * MIB, 4 * 288 * MIB)},
    ),
    Case(
        "only the lines of init are left, two ranks: ring and tree share the one peer",
        joined(init(0, 2, OLD)),
        {0: (0, 288 * MIB, 288 * MIB)},
    ),
    Case(
        "send and recv between nodes share a buffer, 2.20",  # 2 directions x 16 channels x 16 slots x 128 KiB
        joined(
            head(0) + "P2P Chunksize set to 131072",
            [head(0) + f"Channel {c:02d}/1 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA/Shared" for c in range(8)],
            [head(0) + f"Channel {c:02d}/1 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA/Shared" for c in range(8)],
            init(0, 16, "4 coll channels, 0 collnet channels, 0 nvls channels, 16 p2p channels, 2"),
        ),
        {0: exact(64)},
    ),
    Case(
        "labels of torchrun before each line, 2.27",
        joined(
            ["[default1]:" + line for line in channels(1, "1[1] -> 0[0] via P2P/CUMEM/read", 24)],
            init(1, 2, NEW, call=RANK_INIT, prefix="[default1]:"),
        ),
        {1: exact(288)},
    ),
    Case(
        "one rank alone has no connection",
        joined(init(0, 1, SMALL, call=RANK_INIT)),
        {0: exact(0)},
    ),
    Case(
        "RCCL: other buffers, so nothing is said",
        joined(
            "RCCL version : 2.22.3-HEAD:9a5b1f2",
            channels(0, "0[0] -> 1[1] via P2P/IPC", 24),
            init(0, 2, OLD, call=RANK_INIT),
        ),
        {},
    ),
    Case(
        "other lines of NCCL only",
        joined(
            head(0) + "Bootstrap : Using eth0:10.0.0.1<0>",
            head(0) + "cudaDriverVersion 12020",
            head(0)
            + "ncclCommInitRank comm 0x55d0 rank 0 nranks 8 cudaDev 0 nvmlDev 0 busId a0 commId 0xab - Init START",
            head(0) + "init.cc:1358 -> 3",
        ),
        {},
    ),
    Case(
        "numbers that no job has",
        joined(
            init(0, 2, "99999999999999999999 coll channels, -4 nvls channels, 1 p2p channels, 1"),
            init(0, 2, "700 coll channels, 0 nvls channels, 1 p2p channels, 1"),
        ),
        {},
    ),
]
ASIDE = [case.name for case in CASES[2::3]]
"""Every third case: run for the first time when the rules stood."""
