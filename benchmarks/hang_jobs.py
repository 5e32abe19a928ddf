"""Simulate NCCL jobs with faults for `hangs.py`: a mesh of ranks whose hosts run ahead of their devices.

An event simulation: hosts issue launches, devices start them in order, and a launch completes when all its ranks have
reached it with the same signature. So faults have realistic consequences, and dumps look like those of a running job.
"""

import heapq
import itertools
import os
import pickle
import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

START_NS = 1_750_000_000_000_000_000
LAUNCH_NS, RUN_NS, ITEM_NS = 200_000, 300_000, 5_000_000
TIMEOUT_NS = 600_000_000_000
TORCH = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"

Group = tuple[str, str, tuple[int, ...]]
"""A process group: (name, description, global ranks)."""


@dataclass(frozen=True)
class Mesh:
    """The ranks of a job, ordered by pp, dp and tp; tp is the innermost dimension."""

    tp: int
    dp: int
    pp: int

    @property
    def size(self) -> int:
        return self.tp * self.dp * self.pp

    def stage(self, rank: int) -> int:
        return rank // (self.tp * self.dp)

    @cache  # noqa: B019 - the members of thousands of ranks must not be listed for each of them
    def members(self, kind: str, first: int) -> tuple[int, ...]:
        """Return the ranks of the group of kind `kind` (such as "tp") whose first rank is `first`."""
        match kind:
            case "tp":
                return tuple(range(first, first + self.tp))
            case "dp":
                return tuple(range(first, first + self.dp * self.tp, self.tp))
            case "pp":
                return tuple(range(first, self.size, self.dp * self.tp))
        return tuple(range(self.size))

    def group(self, kind: str, rank: int) -> Group:
        t, d, p = rank % self.tp, rank // self.tp % self.dp, self.stage(rank)
        base = p * self.dp * self.tp
        match kind:
            case "tp":
                return str(100 + rank // self.tp), "mesh_tp", self.members(kind, rank - t)
            case "dp":
                return str(10_000 + p * self.tp + t), "mesh_dp", self.members(kind, base + t)
            case "pp":
                return str(100_000 + d * self.tp + t), "mesh_pp", self.members(kind, d * self.tp + t)
        return "0", "default_pg", self.members(kind, 0)


@dataclass(frozen=True)
class Launch:
    """A call of the host: a collective, or a batch of sends and receives. With `sync` the host waits for its device."""

    kind: str
    ops: tuple[str, ...]
    line: int
    inputs: tuple[int, ...] = (4, 1024)
    outputs: tuple[int, ...] = (4, 1024)
    dtype: str = "BFloat16"
    sync: bool = False

    @property
    def p2p(self) -> bool:
        return self.kind == "pp"


@dataclass(frozen=True)
class Style:
    """Settings of the simulated job and of its dumps."""

    layers: int = 3
    steps: int = 4
    depth: int = 1 << 30
    """Number of launches that a host may be ahead of its device."""
    streams: bool = False
    """Whether each group has a stream of its own."""
    exchange: bool = False
    """Whether stages send and receive in one batch."""
    ring: int = 2000
    only_active: bool = False
    skew_ns: int = 0
    """Time between the first and the last dump, at most."""


def program(mesh: Mesh, rank: int, style: Style) -> list[Launch]:
    """Return the launches of a rank in all steps of a run."""
    stage, last = mesh.stage(rank), mesh.pp - 1
    gather = Launch("dp", ("_all_gather_base",), 31, outputs=(4 * mesh.dp, 1024))
    scatter = Launch("dp", ("_reduce_scatter_base",), 52, inputs=(4 * mesh.dp, 1024), dtype="Float")
    forward = [gather, Launch("tp", ("all_reduce",), 35), Launch("tp", ("all_reduce",), 38)]
    backward = [replace(gather, line=50), Launch("tp", ("all_reduce",), 51, (2, 1024), (2, 1024)), scatter]
    up, down = f"send {stage}->{stage + 1}", f"recv {stage}<-{stage + 1}"
    left, right = f"send {stage}->{stage - 1}", f"recv {stage}<-{stage - 1}"
    step = [Launch("pp", (right,), 60)] if stage else []
    step += forward * style.layers
    step += [Launch("pp", (up,), 61)] if stage < last else []
    step += [Launch("pp", (down,), 62)] if stage < last else []
    step += backward * style.layers
    step += [Launch("pp", (left,), 63)] if stage else []
    if style.exchange and mesh.pp > 1:
        after, before = (stage + 1) % mesh.pp, (stage - 1) % mesh.pp
        step.append(Launch("pp", (f"send {stage}->{after}", f"recv {stage}<-{before}"), 66))
    norm, loss = Launch("default", ("all_reduce",), 70, (1,), (1,), "Float"), Launch("default", ("all_reduce",), 74)
    return [*step, norm, replace(loss, inputs=(2,), outputs=(2,), dtype="Float", sync=True)] * style.steps


@dataclass(frozen=True)
class Fault:
    """A fault of kind `kind` that happens on a rank at its launch number `place`."""

    kind: str
    rank: int
    place: int


@dataclass
class Rank:
    """The state of one rank in the simulation."""

    launches: list[Launch]
    issued: list[tuple[Launch, str, int, int]] = field(default_factory=list)
    """(launch, group, number within the group's kind of operation, time)."""
    done_ns: dict[int, int] = field(default_factory=dict)
    queues: dict[str, deque[int]] = field(default_factory=lambda: defaultdict(deque))
    numbers: dict[object, int] = field(default_factory=lambda: defaultdict(int))
    waiting: bool = False
    synced: int = -1


class Simulation:
    """Simulates a job until no rank can continue."""

    def __init__(self, mesh: Mesh, style: Style, faults: list[Fault], seed: int) -> None:
        self.mesh, self.style = mesh, style
        self.random = random.Random(seed)
        self.faults = {(fault.rank, fault.place): fault.kind for fault in faults}
        self.broken: set[object] = set()
        self.lagging: set[tuple[int, int]] = set()
        self.ranks = [Rank(self.altered(rank, faults)) for rank in range(mesh.size)]
        self.arrived: dict[object, dict[int, int]] = defaultdict(dict)
        self.events: list[tuple[int, int, int, int]] = []
        self.reached: set[tuple[int, int]] = set()
        self.groups = [{k: mesh.group(k, rank) for k in ("default", "tp", "dp", "pp")} for rank in range(mesh.size)]

    def altered(self, rank: int, faults: list[Fault]) -> list[Launch]:
        """Return a rank's launches, changed by its faults."""
        launches = program(self.mesh, rank, self.style)
        for fault in faults:
            if fault.rank == rank:
                launches = with_fault(launches, fault)
        return launches

    def run(self) -> None:
        for rank in range(self.mesh.size):
            self.push(START_NS + self.random.randrange(RUN_NS), rank, -1)
        while self.events:
            now, _, rank, index = heapq.heappop(self.events)
            if index < 0:
                self.issue(rank, now)
            else:
                self.finish(rank, index, now)

    @property
    def finished(self) -> list[int]:
        """Return the ranks that have completed all their launches."""
        return [rank for rank, state in enumerate(self.ranks) if len(state.done_ns) == len(state.launches)]

    def push(self, when: int, rank: int, index: int) -> None:
        heapq.heappush(self.events, (when, self.random.getrandbits(30), rank, index))

    def issue(self, rank: int, now: int) -> None:
        """Let the host issue its next launch, unless it is stuck or must wait for its device."""
        state = self.ranks[rank]
        index = len(state.issued)
        if index == len(state.launches) or self.faults.get((rank, index)) in ("host_stuck", "dead"):
            self.reached.add((rank, index))
            return
        if len(state.done_ns) <= state.synced or index - len(state.done_ns) >= self.style.depth:
            state.waiting = True
            return
        launch = state.launches[index]
        name = self.groups[rank][launch.kind][0]
        counter = (name, launch.p2p)
        state.numbers[counter] += 1
        state.issued.append((launch, name, state.numbers[counter], now))
        if launch.sync:
            state.synced = index
        queue = state.queues[name if self.style.streams else ""]
        queue.append(index)
        if len(queue) == 1:
            self.arrive(rank, index, now)
        self.push(now + LAUNCH_NS + self.random.randrange(LAUNCH_NS), rank, -1)

    def arrive(self, rank: int, index: int, now: int) -> None:
        """Let the device start a launch."""
        self.reached.add((rank, index))
        launch, name, number, _ = self.ranks[rank].issued[index]
        kind = self.faults.get((rank, index))
        halves = keys(name, launch, number, self.ranks[rank].numbers)
        for key in halves:
            self.arrived[key][rank] = index
            if kind == "gpu_hang":
                self.broken.add(key)
        if kind == "lagging":
            self.lagging.add((rank, index))
        for key in halves:
            if self.ready(key, launch):
                for member, at in self.arrived[key].items():
                    self.settle(member, at, now)

    def ready(self, key: object, launch: Launch) -> bool:
        """Return whether all members of the group have reached the operation `key` with the same signature."""
        here = self.arrived[key]
        if key in self.broken:
            return False
        if launch.p2p:
            return len(here) == 2
        members = self.groups[next(iter(here))][launch.kind][2]
        if len(here) < len(members):
            return False
        issued = [self.ranks[member].issued[index][0] for member, index in here.items()]
        return len({(one.ops, one.inputs, one.outputs, one.dtype) for one in issued}) == 1

    def settle(self, rank: int, index: int, now: int) -> None:
        """Complete a launch if all its operations have completed."""
        state = self.ranks[rank]
        left = (rank, index)
        launch = state.issued[index][0]
        if launch.p2p and len(launch.ops) > 1:
            state.numbers[left] += 1
            if state.numbers[left] < len(launch.ops):
                return
        if left not in self.lagging and index not in state.done_ns:
            self.push(now + ITEM_NS + self.random.randrange(RUN_NS), rank, index)

    def finish(self, rank: int, index: int, now: int) -> None:
        state = self.ranks[rank]
        state.done_ns[index] = now
        queue = state.queues[state.issued[index][1] if self.style.streams else ""]
        queue.popleft()
        if queue:
            self.arrive(rank, queue[0], now)
        if state.waiting:
            state.waiting = False
            self.push(now, rank, -1)


def keys(name: str, launch: Launch, number: int, numbers: dict[object, int]) -> list[object]:
    """Return the keys by which ranks match a launch: one for a collective; one per pair and count for sends."""
    if not launch.p2p:
        return [(name, number)]
    found: list[object] = []
    for op in launch.ops:
        me, _, peer = op.split(" ")[1].replace("->", " ").replace("<-", " ").partition(" ")
        pair = (me, peer) if op.startswith("send") else (peer, me)
        numbers[name, op] += 1
        found.append((name, *pair, numbers[name, op]))
    return found


def with_fault(launches: list[Launch], fault: Fault) -> list[Launch]:
    """Return the launches with one of them changed, left out or moved behind the next."""
    before, here, after = launches[: fault.place], launches[fault.place], launches[fault.place + 1 :]
    changed = {
        "shape": [replace(here, inputs=(6, *here.inputs[1:]), outputs=(6, *here.outputs[1:])), *after],
        "dtype": [replace(here, dtype="Half"), *after],
        "type": [replace(here, ops=("broadcast" if here.ops[0] != "broadcast" else "reduce",)), *after],
        "skipped": after,
        "unmatched_p2p": after,
        "order_cycle": [*after[:1], here, *after[1:]],
        "swapped": [*after[:1], here, *after[1:]],
        "extra": [replace(here, ops=("_all_gather_base",), inputs=(1,), outputs=(8,), line=81), here, *after],
    }
    return before + changed[fault.kind] if fault.kind in changed else launches


def entries(simulation: Simulation, rank: int, now: int) -> list[dict[str, Any]]:
    """Return the operations that a rank has issued up to an instant, as Flight Recorder entries."""
    state, found, seqs, op_ids = simulation.ranks[rank], [], defaultdict(int), defaultdict(int)
    records = itertools.count()
    for index, (launch, name, number, created) in enumerate(state.issued):
        if created > now:
            break
        seqs[name] += not launch.p2p
        ended = state.done_ns.get(index, now + 1)
        desc = simulation.groups[rank][launch.kind][1]
        for op in launch.ops if len(launch.ops) == 1 else (*launch.ops, "coalesced"):
            op_ids[name] += 1
            # Of a coalesced launch NCCL marks only the closing entry as done.
            done = ended if len(launch.ops) == 1 or op == "coalesced" else now + 1
            found.append(
                {
                    "frames": frames(launch),
                    "record_id": next(records),
                    "pg_id": pg_id(name),
                    "process_group": (name, desc),
                    "collective_seq_id": seqs[name],
                    "p2p_seq_id": number if launch.p2p else 0,
                    "op_id": op_ids[name],
                    "profiling_name": f"nccl:{op}",
                    "time_created_ns": created,
                    "input_sizes": [] if op == "coalesced" else [list(launch.inputs)],
                    "input_dtypes": [] if op == "coalesced" else [launch.dtype],
                    "output_sizes": [] if op == "coalesced" else [list(launch.outputs)],
                    "output_dtypes": [] if op == "coalesced" else [launch.dtype],
                    "state": "completed" if done <= now else "scheduled",
                    "time_discovered_started_ns": None,
                    "time_discovered_completed_ns": done if done <= now else None,
                    "retired": done <= now,
                    "timeout_ms": TIMEOUT_NS // 1_000_000,
                    "is_p2p": launch.p2p,
                    "thread_id": "139",
                    "thread_name": "pt_main_thread",
                }
            )
    return found


def pg_id(name: str) -> int:
    return {1: 0, 3: 1, 5: 2}.get(len(name), 3)


@cache
def frames(launch: Launch) -> list[dict[str, Any]]:
    torch = [{"name": launch.ops[0].split(" ", maxsplit=1)[0], "filename": TORCH, "line": 2800 + launch.line}]
    names = ("attend", "forward_layer", "forward", "forward_backward", "train_step", "train", "main")
    mine = [
        {"name": n, "filename": "/home/me/job/train.py", "line": launch.line + 100 * i} for i, n in enumerate(names)
    ]
    return torch + mine


def status(issued: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return `pg_status`, which also counts operations that are no longer in the ring buffer."""
    found: dict[str, dict[str, int]] = {}
    names = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
    for entry in issued:
        one = found.setdefault(str(entry["pg_id"]), dict.fromkeys(names, -1))
        one[names[0]] = entry["op_id"]
        if entry["state"] == "completed":
            one[names[2]] = entry["op_id"]
    return found


@cache
def listed(ranks: tuple[int, ...]) -> str:
    return str(list(ranks))


def dump(simulation: Simulation, rank: int, now: int) -> dict[str, Any]:
    """Return a complete dump in Flight Recorder's format version 2.10."""
    style, issued = simulation.style, entries(simulation, rank, now)
    used = {entry[1] for entry in simulation.ranks[rank].issued} | {"0"}
    return {
        "version": "2.10",
        "pg_config": {
            name: {"name": name, "desc": desc, "ranks": listed(ranks)}
            for name, desc, ranks in simulation.groups[rank].values()
            if name in used
        },
        "pg_status": status(issued),
        "comm_lib_version": "2.27.5",
        "entries": [e for e in issued[-style.ring :] if not style.only_active or e["state"] != "completed"],
    }


def with_past(content: dict[str, Any], period: int, ring: int) -> dict[str, Any]:
    """Return the dump of a long job: its first `period` entries are repeated until the ring buffer is full."""
    recent = content["entries"]
    steps = -(-ring // period)
    grown = {e["process_group"]: (e["collective_seq_id"], e["p2p_seq_id"], e["op_id"]) for e in recent[:period]}
    issued = []
    for step in range(steps + 1):
        for entry in recent[:period] if step < steps else recent:
            collective, p2p, op = grown[entry["process_group"]]
            issued.append(
                entry
                | {
                    "frames": list(entry["frames"]),  # the recorder's frames are shared, its lists are not
                    "record_id": len(issued),
                    "collective_seq_id": entry["collective_seq_id"] + step * collective,
                    "p2p_seq_id": entry["p2p_seq_id"] + step * p2p * entry["is_p2p"],
                    "op_id": entry["op_id"] + step * op,
                    "time_created_ns": entry["time_created_ns"] - (steps - step) * 10**9,
                }
            )
    return content | {"entries": issued[-ring:]}


def write(simulation: Simulation, folder: Path, instants: dict[int, int]) -> None:
    """Write a dump for each rank, taken at its instant, which is also the modification time of the file."""
    folder.mkdir(parents=True)
    for rank, now in instants.items():
        path = folder / f"rank_{rank}"
        path.write_bytes(pickle.dumps(dump(simulation, rank, now), protocol=2))
        os.utime(path, ns=(now, now))


def places(launches: list[Launch], steps: int, kinds: tuple[str, ...]) -> Iterator[int]:
    """Yield the launches in the last two steps at which a fault can happen; `kinds` are the kinds of their groups."""
    first = len(launches) * (steps - 2) // steps
    return (i for i in range(first, len(launches) - 1) if launches[i].kind in kinds)
