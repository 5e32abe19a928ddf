"""Simulate a job of pipeline stages under the 1F1B schedule and write its traces like PyTorch's profiler on CUDA.

The ranks of stage s are those from s * replicas on; rank s * replicas + r sends to and receives from rank r of the
stages beside its own. A rank sends an activation or a gradient and receives what comes back in one kernel, as
`torch.distributed.batch_isend_irecv` does. A kernel of messages ends when all of its messages have met their peers. At
the end of a step the replicas of each stage reduce their gradients, and all ranks reduce the norm.
"""

import io
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.traced_job import (
    BASE_NS,
    COLLECTIVE_ARGS,
    COMMUNICATION,
    COMPUTE,
    GROUP,
    HEAD,
    LATENCY_NS,
    TAIL,
    US,
    Collective,
    Fault,
    Host,
    Op,
    Rank,
)

TRANSFER_NS = 120 * US
ELEMENTS = 1 << 22
GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas"


@dataclass(frozen=True)
class Pipeline:
    """A job of `len(layers)` stages, stage s with `layers[s]` layers, each of them on `replicas` ranks.

    A layer computes for `layer_ns` forward and twice as long backward. With `described` process groups the traces name
    the groups of the stages `mesh_pp`. With `fused` messages no kernel has arguments, not even that of one message;
    they are with the operators that issued the messages. `norm`: in each step all ranks reduce a norm.
    """

    layers: Sequence[int]
    replicas: int = 1
    microbatches: int = 8
    layer_ns: int = 500 * US
    described: bool = True
    fused: bool = True
    norm: bool = True

    @property
    def world(self) -> int:
        return len(self.layers) * self.replicas


@dataclass(frozen=True)
class Messages:
    """A kernel that sends to a stage and receives from one: 1 is the stage after the own, -1 the one before, 0 none."""

    send: int = 0
    receive: int = 0


Step = Messages | Collective | Host | Op


def schedule(job: Pipeline, stage: int) -> Iterator[Step]:
    """Yield what a rank of `stage` does in a step, by the 1F1B schedule of Megatron-LM (arXiv:2104.04473, figure 4)."""
    last = len(job.layers) - 1
    warm = min(last - stage, job.microbatches)
    steady = job.microbatches - warm
    before, after = -(stage > 0), int(stage < last)
    yield Host("dataloader", 100 * US)
    for _ in range(warm):
        yield Messages(receive=before)
        yield from layers(job, stage, "forward")
        yield Messages(send=after)
    yield Messages(receive=before * (steady > 0))
    for done in range(1, steady + 1):
        yield from layers(job, stage, "forward")
        yield Messages(send=after, receive=after)
        yield from layers(job, stage, "backward")
        yield Messages(send=before, receive=before * (done < steady))
    for _ in range(warm):
        yield Messages(receive=after)
        yield from layers(job, stage, "backward")
        yield Messages(send=before)
    if job.replicas > 1:
        yield Collective("allreduce", 1 << 24, 400 * US, size=job.replicas)
    if job.norm:
        yield Collective("allreduce", 1, 30 * US)
    yield Op("aten::_fused_adamw_", "multi_tensor_apply_kernel", 60 * US * job.layers[stage])


def layers(job: Pipeline, stage: int, direction: str) -> Iterator[Op]:
    """Yield the operators of the layers of a stage, four for each layer."""
    ns = job.layer_ns * (1 if direction == "forward" else 2) // 4
    for _ in range(job.layers[stage] * 4):
        yield Op("aten::mm", f"{GEMM}_{direction}", ns, (4096, 4096, 4096), f"aten::linear_{direction}")


@dataclass
class Issued:
    """A kernel of messages that a rank has issued: when it could begin, and when it ends once that is known."""

    rank: Rank
    messages: Messages
    arrival: int
    peers: list["Issued"] = field(default_factory=list)
    end: int | None = None

    @property
    def expected(self) -> int:
        """The number of messages of the kernel."""
        return (self.messages.send != 0) + (self.messages.receive != 0)


@dataclass
class Simulation:
    """All ranks of a job, run until each of them waits for another one, again and again until the steps are done."""

    job: Pipeline
    ranks: Sequence[Rank]
    steps: int
    queues: dict[tuple[int, int, bool], deque[Issued]] = field(default_factory=dict)
    waiting: dict[int, Issued] = field(default_factory=dict)
    meeting: dict[str, dict[int, Collective]] = field(default_factory=dict)
    sequences: dict[str, int] = field(default_factory=dict)

    def run(self) -> None:
        programs = {rank.rank: self.program(rank) for rank in self.ranks}
        blocked: dict[int, object] = {}
        while programs:
            before = len(programs), sum(rank.events for rank in self.ranks)
            for number, program in list(programs.items()):
                if blocked.get(number) is not None and not self.ready(blocked[number]):
                    continue
                blocked[number] = next(program, None)
                if blocked[number] is None:
                    del programs[number]
            if before == (len(programs), sum(rank.events for rank in self.ranks)):
                raise RuntimeError(f"ranks {sorted(programs)} wait for each other")

    def ready(self, awaited: object) -> bool:
        return awaited.end is not None if isinstance(awaited, Issued) else awaited not in self.meeting

    def program(self, rank: Rank) -> Iterator[object]:
        """Run the steps of a rank; yield what it must wait for before it can go on."""
        for number in range(1, self.steps + 1):
            start = rank.host
            for part in schedule(self.job, rank.rank // self.job.replicas):
                if isinstance(part, Messages):
                    yield from self.exchange(rank, part)
                elif isinstance(part, Collective):
                    yield self.join(rank, part)
                elif isinstance(part, Host):
                    rank.wait(part)
                else:
                    rank.op(part)
            rank.step(number, start)

    def exchange(self, rank: Rank, messages: Messages) -> Iterator[Issued]:
        """Let a rank send and receive, unless it is at that end of the pipeline and has no stage to exchange with."""
        if messages != Messages():
            issued = self.issue(rank, messages)
            yield issued
            self.write(issued)

    def issue(self, rank: Rank, messages: Messages) -> Issued:
        """Let a rank arrive at a kernel of messages, and end all kernels whose messages have now met their peers."""
        issued = Issued(rank, messages, 0)
        launch = rank.host + 5 * US * issued.expected
        issued.arrival = max(launch + LATENCY_NS, rank.free[COMMUNICATION], rank.free[COMPUTE])
        for offset, sends in ((messages.send, True), (messages.receive, False)):
            if not offset:
                continue
            peer = rank.rank + offset * self.job.replicas
            path = (rank.rank, peer) if sends else (peer, rank.rank)
            others = self.queues.setdefault((*path, not sends), deque())
            if others:
                other = others.popleft()
                other.peers.append(issued)
                issued.peers.append(other)
            else:
                self.queues.setdefault((*path, sends), deque()).append(issued)
        self.settle(issued)
        return issued

    def settle(self, issued: Issued) -> None:
        """Set the end of a kernel and of its peers, as far as all of their own peers have arrived.

        A chain of ranks that send to each other at once ends together with its last arrival only between neighbours: a
        message needs both of its kernels to run, but not the other messages of its peer.
        """
        for one in (issued, *issued.peers):
            if one.end is None and len(one.peers) == one.expected:
                one.end = max(one.arrival, *(peer.arrival for peer in one.peers)) + TRANSFER_NS

    def write(self, issued: Issued) -> None:
        """Write a kernel of messages, with an operator for each message, to the trace of its rank."""
        rank, end, messages = issued.rank, issued.end, issued.messages
        if end is None:
            raise RuntimeError("a kernel is written before its end is known")
        arguments = ""
        for offset, name in ((messages.send, "send"), (messages.receive, "recv")):
            if offset:
                arguments = self.message(rank, name, offset)
                rank.external += 1
                rank.event("cpu_op", f"c10d::{name}", rank.host, 4 * US, rank.op_args(""))
                rank.event("cpu_op", "record_param_comms", rank.host + US, 2 * US, rank.op_args(arguments + ", "))
                rank.host += 5 * US
        rank.call(rank.host)
        fused = self.job.fused or issued.expected > 1
        kernel = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        rank.kernel(kernel, issued.arrival, end - issued.arrival, COMMUNICATION, "" if fused else ", " + arguments)
        rank.host += 6 * US
        rank.free[COMMUNICATION] = end
        if messages.receive:
            rank.free[COMPUTE] = max(rank.free[COMPUTE], end)

    def message(self, rank: Rank, name: str, offset: int) -> str:
        """Return the arguments with which a send or a receive is recorded."""
        peer = rank.rank + offset * self.job.replicas
        members = self.stages_of(rank.rank)
        self.sequences[f"{rank.rank}"] = number = self.sequences.get(f"{rank.rank}", 0) + 1
        group, desc = f"pp{rank.rank % self.job.replicas}", "mesh_pp" if self.job.described else ""
        arguments = COLLECTIVE_ARGS % (name, ELEMENTS, ELEMENTS, len(members), group, desc, members, number)
        return f'{arguments}, "{"Dst" if name == "send" else "Src"} Rank": {peer}'

    def stages_of(self, rank: int) -> list[int]:
        return list(range(rank % self.job.replicas, self.job.world, self.job.replicas))

    def join(self, rank: Rank, part: Collective) -> str:
        """Let a rank arrive at a collective; the last rank of the group ends it. Return its key in `meeting`."""
        group = part.group(rank.rank)
        here = self.meeting.setdefault(group, {})
        here[rank.rank] = part
        if len(here) == len(part.members(rank.rank, self.job.world)):
            ranks = [one for one in self.ranks if one.rank in here]
            end = max(one.arrive(part) for one in ranks) + part.ns
            number = self.sequences[group] = self.sequences.get(group, 0) + 1
            for one in ranks:
                one.meet(part, number, end)
            del self.meeting[group]
        return group


def write_job(folder: Path, job: Pipeline, steps: int, faults: Sequence[Fault] = (), offset: int = 0) -> None:
    """Write a trace for each rank of `steps` steps of `job` to `folder`; rank r's clock is r * `offset` ns ahead."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        texts: list[io.TextIOWrapper] = [
            files.enter_context((folder / f"rank{r}_trace.json").open("w")) for r in range(job.world)
        ]
        ranks = [Rank(r, job.world, text, offset=r * offset, faults=faults) for r, text in enumerate(texts)]
        simulation = Simulation(job, ranks, steps)
        for rank in ranks:
            host = rank.rank if offset else 0
            rank.out.write(HEAD % (rank.rank, job.world, groups(simulation, rank.rank), host, BASE_NS))
        simulation.run()
        for rank in ranks:
            rank.out.write(TAIL % (*divmod(rank.shown(rank.host), 1000), rank.rank))


def groups(simulation: Simulation, rank: int) -> str:
    """Return the process groups of a rank in the format of the header of its trace file."""
    job = simulation.job
    replicas = Collective("", 0, 0, size=job.replicas)
    known = [
        ("0", "default_pg", list(range(job.world))),
        (f"pp{rank % job.replicas}", "mesh_pp" if job.described else "", simulation.stages_of(rank)),
        (replicas.group(rank), "mesh_dp", replicas.members(rank, job.world)),
    ]
    return ", ".join(GROUP % (name, desc, len(ranks), ranks) for name, desc, ranks in known)
