"""Simulate a job and write its traces like PyTorch's profiler on CUDA, so that tests know the true causes.

The ranks run together: each has a host that launches, a stream that computes and a stream that communicates. A
collective ends on all ranks when the last rank has arrived. A `Fault` makes a rank late for a known reason.
"""

import gzip
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

BASE_NS = 1_790_857_026_000_000_000
US = 1_000
COMPUTE, COMMUNICATION = 7, 20
OP_NS, LAUNCH_NS, LATENCY_NS = 9 * US, 4 * US, 3 * US
"""Host time of one operator, least time of its launching call, and time from the call's start to the kernel's."""
BEGIN_NS = 4_402_712_162_817_961
LISTED = 30
POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*,"
    " 3ul> >(int, at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>)"
)

# The text as PyTorch 2.13 writes it: one key a line, blank lines for keys that an event lacks, arguments in one line.
HEAD = """ {
    "schemaVersion": 1,
    "deviceProperties": [
    {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": 85899345920, "computeMajor": 9, "computeMinor": 0, "numSms": 132}
  ],

      "cupti_version": 26,
      "record_shapes": 1,
      "distributedInfo": {"backend": "nccl", "rank": %d, "world_size": %d, "pg_config": [%s], "nccl_version": "2.27.3"},
      "host_name": "node%d",
    "displayTimeUnit": "ms",
    "baseTimeNanoseconds": %d,
    "traceEvents": [
    """
GROUP = '{"pg_name": "%s", "pg_desc": "%s", "backend_config": "cuda:nccl", "pg_size": %d, "ranks": %s}'
EVENT = """
  {
    "ph": "X",
    "cat": "%s",
    "name": "%s",
    "pid": %s,
    "tid": %s,
    "ts": %d.%03d,
    "dur": %d.%03d
    %s
  },"""
ARGS = """,
    "args": {
      %s
    }"""
FLOW = """
  {
    "ph": "%s",
    "id": %d,
    "pid": %s,
    "tid": %s,
    "ts": %d.%03d,
    "cat": "ac2g",
    "name": "ac2g"
    %s
  },"""
TAIL = """
  {
    "ph": "i",

    "s": "g",
    "name": "Record Window End",
    "pid": "",
    "tid": "",
    "ts": %d.%03d

  }
  ],"traceName": "rank%d_trace.json" }"""
OP_ARGS = '"External id": %d,"Record function id": 0, %s"Ev Idx": %d'
CALL_ARGS = '"External id": %d,      "cbid": %d, "correlation": %d'
KERNEL_ARGS = (
    '"External id": %d,      "queued": 0, "device": 0, "context": 1,      "stream": %d, "correlation": %d,     '
    ' "registers per thread": 168,      "shared memory": 213504,      "blocks per SM": 1.939394,      "warps per SM":'
    ' 23.272728,      "grid": [16, 16, 1],      "block": [384, 1, 1],      "est. achieved occupancy %%": 18,     '
    ' "graph id": 0, "graph node id": 0'
)
COLLECTIVE_ARGS = (
    '"Collective name": "%s", "In msg nelems": %d, "Out msg nelems": %d, "Group size": %d, "dtype": "BFloat16",'
    ' "In split size": "[]", "Out split size": "[]", "Process Group Name": "%s", "Process Group Description":'
    ' "%s", "Process Group Ranks": "%s", "Seq": %d'
)
SHAPES = (
    '"Concrete Inputs": ["", ""], "Input type": ["c10::BFloat16", "c10::BFloat16"],'
    ' "Input Strides": [[%d, 1], [%d, 1]], "Input Dims": [[%d, %d], [%d, %d]], '
)


@dataclass(frozen=True)
class Op:
    """An operator, its kernel, and the kernel's duration; `dims` are m, k, n of a matrix product."""

    name: str
    kernel: str
    ns: int
    dims: tuple[int, int, int] | None = None
    outer: str = ""
    module: str = ""


@dataclass(frozen=True)
class Collective:
    """A collective on the communication stream; if it `blocks`, the next computation needs its result.

    All ranks take part, or with a `size` groups of that many ranks that are `stride` apart.
    """

    name: str
    elements: int
    ns: int
    blocks: bool = True
    size: int = 0
    stride: int = 1

    def members(self, rank: int, world: int) -> list[int]:
        """Return the ranks of the group that `rank` belongs to."""
        if not self.size:
            return list(range(world))
        first = rank // (self.size * self.stride) * self.size * self.stride + rank % self.stride
        return [first + i * self.stride for i in range(self.size)]

    def group(self, rank: int) -> str:
        """Return the name of the group that `rank` belongs to."""
        return f"{self.size}x{self.stride}_{self.members(rank, 0)[0]}" if self.size else "0"

    @property
    def desc(self) -> str:
        return f"mesh_{self.stride}" if self.size else "default_pg"


@dataclass(frozen=True)
class Host:
    """Work on the host that launches no kernel."""

    name: str
    ns: int
    cat: str = "user_annotation"


@dataclass(frozen=True)
class Mark:
    """The start or the end of an annotation."""

    name: str
    begins: bool = True


Part = Op | Collective | Host | Mark


@dataclass(frozen=True)
class Fault:
    """Slows `rank`: its kernels take `factor` times as long, or its `Host` or `Op` named `host` `ns` longer."""

    rank: int
    factor: float = 1.0
    host: str = ""
    ns: int = 0


def llama(layers: int = 8, small: int = 6, shards: int = 0) -> list[Part]:
    """Return a step of a transformer that is sharded over groups of `shards` ranks (0: over all), with `small`
    pointwise operators per layer.
    """
    gather = Collective("_allgather_base", 1 << 22, 150 * US, size=shards)
    scatter = Collective("_reduce_scatter_base", 1 << 22, 200 * US, blocks=False, size=shards)
    parts: list[Part] = [Host("dataloader", 300 * US), Mark("forward")]
    for layer in range(layers):
        parts += [Mark(f"FSDP::pre_forward (layers.{layer})"), gather]
        parts += [Mark("", begins=False), *block(f"layers.{layer}", small, "")]
    parts += [Mark("", begins=False), Mark("backward")]
    for layer in reversed(range(layers)):
        parts += [gather, *block(f"layers.{layer}", 2 * small, "Backward0"), scatter]
    parts += [Mark("", begins=False), Mark("Optimizer.step#AdamW.step")]
    parts += [Op("aten::_fused_adamw_", "multi_tensor_apply_kernel", 400 * US)] * 2
    return [*parts, Collective("allreduce", 1, 30 * US), Mark("", begins=False)]


def block(module: str, small: int, suffix: str) -> Iterator[Part]:
    kernel = f"sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_cublas_{suffix or 'forward'}"
    for product, ns in (("wq", 90), ("wo", 90), ("w1", 250), ("w2", 250)):
        yield Op("aten::mm", kernel, ns * US, (4096, 4096, 4096), f"aten::linear{suffix}", f"{module}.{product}")
        for i in range(small // 4):
            yield Op(
                "aten::add" if i % 2 else "aten::mul", POINTWISE, 12 * US, (4096, 4096, 4096), "", f"{module}.{product}"
            )


@dataclass
class Rank:
    """A simulated rank: the current times of its host and streams in ns, and the text of its trace so far."""

    rank: int
    world: int
    out: IO[str]
    offset: int = 0
    ppm: int = 0
    faults: Sequence[Fault] = ()
    host: int = BEGIN_NS
    free: dict[int, int] = field(default_factory=lambda: {COMPUTE: 0, COMMUNICATION: 0})
    correlation: int = 0
    external: int = 0
    events: int = 0
    open: list[tuple[str, int]] = field(default_factory=list)
    work: list[tuple[int, int, str]] = field(default_factory=list)
    arrivals: list[int] = field(default_factory=list)

    def shown(self, at: int) -> int:
        """Return the time that this rank's clock shows at the true time `at`, in ns.

        The clock is `offset` ns ahead, and gains `ppm` us per second.
        """
        return at + self.offset + round((at - BEGIN_NS) * self.ppm / 1_000_000)

    def lost(self, name: str) -> int:
        return sum(fault.ns for fault in self.faults if fault.rank == self.rank and fault.host == name)

    def factor(self) -> float:
        return max((fault.factor for fault in self.faults if fault.rank == self.rank), default=1.0)

    def event(self, cat: str, name: str, start: int, ns: int, args: str, lane: tuple[int, int] | None = None) -> None:
        pid, tid = lane or (4000 + self.rank, 4000 + self.rank)
        shown = self.shown(start)
        ns = self.shown(start + ns) - shown
        self.out.write(EVENT % (cat, name, pid, tid, *divmod(shown, 1000), *divmod(ns, 1000), ARGS % args))
        self.events += 1

    def op(self, op: Op) -> None:
        start = self.host
        self.external += 1
        inner = start + US
        dims = SHAPES % (op.dims[1], op.dims[2], *op.dims[:2], *op.dims[1:]) if op.dims else ""
        launching = LAUNCH_NS + self.external * 7919 % LAUNCH_NS  # never twice the same
        self.host += OP_NS - LAUNCH_NS + launching + self.lost(op.name)
        if op.outer:
            self.event("cpu_op", op.outer, start, self.host - start, self.op_args(""))
        self.event("cpu_op", op.name, inner, self.host - US // 2 - inner, self.op_args(dims))
        ns = round((op.ns + self.external * 7919 % 1000) * self.factor())
        self.launch(op.kernel, ns, self.host - US - launching, launching)

    def op_args(self, more: str) -> str:
        return OP_ARGS % (self.external, more, self.external)

    def launch(self, name: str, ns: int, at: int, launching: int) -> None:
        """Write the launching call, its kernel and the arrow between them to the trace."""
        start = max(at + LATENCY_NS, self.free[COMPUTE])
        self.call(at, launching)
        self.kernel(name, start, ns, COMPUTE, "")
        self.free[COMPUTE] = start + ns
        self.work.append((start, start + ns, "compute"))

    def call(self, at: int, ns: int = LAUNCH_NS) -> None:
        self.correlation += 1
        lane = (4000 + self.rank, 4000 + self.rank)
        args = CALL_ARGS % (self.external, 211, self.correlation)
        self.event("cuda_runtime", "cudaLaunchKernel", at, ns, args)
        self.out.write(FLOW % ("s", self.correlation, *lane, *divmod(self.shown(at), 1000), ""))

    def kernel(self, name: str, start: int, ns: int, stream: int, extra: str) -> None:
        args = KERNEL_ARGS % (self.external, stream, self.correlation) + extra
        self.event("kernel", name, start, ns, args, (0, stream))
        flow = ("f", self.correlation, 0, stream, *divmod(self.shown(start), 1000), ', "bp": "e"')
        self.out.write(FLOW % flow)
        self.events += 2

    def arrive(self, part: Collective) -> int:
        """Return the time at which the collective's kernel starts on this rank, after earlier computations."""
        launch = self.host + 5 * US
        return max(launch + LATENCY_NS, self.free[COMMUNICATION], self.free[COMPUTE] if part.blocks else 0)

    def meet(self, part: Collective, sequence: int, end: int) -> None:
        """Write a collective that ends on all ranks at `end` to the trace."""
        begins, launch = self.arrive(part), self.host + 5 * US
        self.external += 1
        ranks = part.members(self.rank, self.world)
        sizes = part.elements, part.elements * len(ranks), len(ranks)
        arguments = COLLECTIVE_ARGS % (part.name, *sizes, part.group(self.rank), part.desc, listed(ranks), sequence)
        self.event("cpu_op", f"c10d::{part.name}_", self.host, 11 * US, self.op_args(""))
        self.event("cpu_op", "record_param_comms", self.host + US, 9 * US, self.op_args(arguments + ", "))
        self.call(launch)
        kernel = f"ncclDevKernel_{part.name.title().replace('_', '')}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
        self.kernel(kernel, begins, end - begins, COMMUNICATION, ", " + arguments)
        self.host += 12 * US
        self.free[COMMUNICATION] = end
        self.free[COMPUTE] = max(self.free[COMPUTE], end if part.blocks else 0)
        self.work.append((begins, end, "communication"))
        self.arrivals.append(begins)

    def wait(self, part: Host) -> None:
        ns = part.ns + self.lost(part.name)
        self.event(part.cat, part.name, self.host, ns, '"External id": 0')
        self.host += ns

    def mark(self, mark: Mark) -> None:
        if mark.begins:
            self.open.append((mark.name, self.host))
            return
        name, start = self.open.pop()
        self.event("user_annotation", name, start, self.host - start, '"External id": 0')

    def step(self, number: int, start: int) -> None:
        """End a step: the host waits for the device."""
        self.correlation += 1
        ready = max(self.host + 5 * US, *self.free.values())
        args = CALL_ARGS % (0, 165, self.correlation)
        self.event("cuda_runtime", "cudaDeviceSynchronize", self.host, ready - self.host, args)
        self.host = ready + 20 * US
        self.event("user_annotation", f"ProfilerStep#{number}", start, self.host - start, '"External id": 0')


def listed(ranks: Sequence[int]) -> str:
    """Return ranks as PyTorch writes them into the arguments of an event: of more than `LISTED` some are left out."""
    if len(ranks) <= LISTED:
        return str(list(ranks))
    return f"[{', '.join(map(str, ranks[: LISTED - 1]))}, ..., {ranks[-1]}]"


def simulate(ranks: Sequence[Rank], steps: int, parts: Sequence[Part]) -> None:
    """Run the steps on all ranks together."""
    sequences: dict[str, int] = {}
    for number in range(1, steps + 1):
        starts = [rank.host for rank in ranks]
        for part in parts:
            if isinstance(part, Collective):
                meet(ranks, part, sequences)
                continue
            for rank in ranks:
                run(rank, part)
        for rank, start in zip(ranks, starts, strict=True):
            rank.step(number, start)


def meet(ranks: Sequence[Rank], part: Collective, sequences: dict[str, int]) -> None:
    """End each group's collective when the last rank of the group has arrived."""
    ends: dict[str, int] = {}
    for rank in ranks:
        name = part.group(rank.rank)
        ends[name] = max(ends.get(name, 0), rank.arrive(part) + part.ns)
    for rank in ranks:
        name = part.group(rank.rank)
        rank.meet(part, sequences.get(name, 0), ends[name])
    sequences.update({name: sequences.get(name, 0) + 1 for name in ends})


def run(rank: Rank, part: Op | Host | Mark) -> None:
    if isinstance(part, Op):
        rank.op(part)
    elif isinstance(part, Host):
        rank.wait(part)
    else:
        rank.mark(part)


def job(
    folder: Path,
    world: int,
    steps: int,
    parts: Sequence[Part],
    *,
    faults: Sequence[Fault] = (),
    offset: int = 0,
    ppm: int = 0,
) -> list[Rank]:
    """Write a trace for each rank to `folder`; return the ranks with their true times.

    Rank r's clock is r * `offset` ns ahead at the beginning and gains r * `ppm` us per second.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        packed = (files.enter_context(gzip.open(folder / f"rank{r}_trace.json.gz", "wb", 1)) for r in range(world))
        texts = [files.enter_context(io.TextIOWrapper(file)) for file in packed]
        ranks = [Rank(r, world, text, offset=r * offset, ppm=r * ppm, faults=faults) for r, text in enumerate(texts)]
        for rank in ranks:
            host = rank.rank if offset or ppm else 0
            rank.out.write(HEAD % (rank.rank, world, groups(rank.rank, world, parts), host, BASE_NS))
        simulate(ranks, steps, parts)
        for rank in ranks:
            rank.out.write(TAIL % (*divmod(rank.shown(rank.host), 1000), rank.rank))
    return ranks


def groups(rank: int, world: int, parts: Sequence[Part]) -> str:
    """Return the process groups of a rank in the format of the header of its trace file."""
    met = [Collective("", 0, 0), *(part for part in parts if isinstance(part, Collective))]
    known = {part.group(rank): (part.desc, part.members(rank, world)) for part in met}
    return ", ".join(GROUP % (name, desc, len(ranks), ranks) for name, (desc, ranks) in known.items())


def large(path: Path, events: int) -> int:
    """Write a trace of one rank with `events` events or a few more; return their number."""
    parts = llama(layers=32, small=8)
    probe = Rank(0, 1, io.StringIO())
    simulate([probe], 1, parts)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        [rank] = job(Path(folder), 1, -(-events // probe.events), parts)
        Path(folder, "rank0_trace.json.gz").rename(path)
    return rank.events


if __name__ == "__main__":
    print(large(Path(sys.argv[1]), int(sys.argv[2])))
