"""Measure how far `workbench estimate` is from real ranks that share a model: python -m benchmarks.parallelisms.

The cases are tensor, context and pipeline parallelism, and experts with each of them: each rank trains its part of the
model with the parallelisation plans that the trainer and the estimate use.

Gloo copies the tensors that it gathers and reduces, and keeps them until its thread releases them. So the peak varies
between runs, most where little other memory is used. Therefore each rank also runs alone, with real memory, on a
process group that transfers nothing: then only the rank's own allocations count. This is not possible with experts,
whose tokens must arrive.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from analyzers.memory import analyze
from analyzers.run import Kind, discover
from benchmarks.start_job import Start, start_job
from trainer.config import load
from trainer.config.mesh import model_parts
from trainer.estimate.rehearsal import local_problem
from trainer.models.decoder import init_weights, model_args
from trainer.parallel.mesh import build_world
from trainer.parallel.pipeline import build_step, join_parts
from trainer.parallel.plan import build_parts
from trainer.step import build_optimizer
from workbench.commands.estimate import estimate
from workbench.launch.plan import Request
from workbench.recorders.memory.recorder import MemoryRecorder

ROOT = Path(__file__).parents[1]
STEPS = 3
BACKEND = "WORKBENCH_BACKEND"
LARGE, FULL = ("--model.flavor", "debugmodel_large"), ("--activation_checkpoint.mode", "full")
EIGHT = ("--training.local_batch_size", "8")
LOOPED = ("--parallelism.pipeline_parallel_schedule", "Interleaved1F1B")
GPIPE = ("--parallelism.pipeline_parallel_schedule", "GPipe")
MIXED = ("--model.name", "llama4")
EVEN = (*MIXED, "--debug.moe_force_load_balance")
SHARED = ("--parallelism.expert_parallel_degree", "2")
ZERO_BUBBLE = ("--parallelism.pipeline_parallel_schedule", "ZBVZeroBubble")


class Case(NamedTuple):
    """The ranks of one kind of parallelism; `copies` ranks shard the weights, and other settings may change."""

    kind: str
    degree: int
    flags: tuple[str, ...] = ()
    copies: int = 1

    def __str__(self) -> str:
        shards = [f"fsdp {self.copies}"] if self.copies > 1 else []
        return ", ".join([f"{self.kind} {self.degree}", *shards, *self.flags[1::2]])

    @property
    def ranks(self) -> int:
        return self.degree * self.copies

    @property
    def overrides(self) -> tuple[str, ...]:
        name = {"tp": "tensor", "cp": "context", "pp": "pipeline", "ep": "expert"}[self.kind]
        return (*self.flags, f"--parallelism.{name}_parallel_degree", str(self.degree))


CASES = [
    *(Case("tp", *rest) for rest in [(2,), (2, EIGHT), (2, FULL), (2, LARGE), (4, LARGE)]),
    *(Case("cp", *rest) for rest in [(2,), (2, FULL), (2, LARGE), (4, LARGE)]),
    *(Case("pp", *rest) for rest in [(2,), (2, EIGHT), (2, (*EIGHT, *FULL)), (2, (*EIGHT, *LARGE))]),
    *(Case("pp", 2, (*EIGHT, *LARGE, *schedule)) for schedule in (GPIPE, LOOPED, ZERO_BUBBLE)),
    Case("pp", 4, (*EIGHT, *LARGE)),
    Case("pp", 2, (*EIGHT, *LARGE), copies=2),
    *(Case("ep", 2, flags) for flags in (EVEN, MIXED, (*MIXED, *FULL))),
    Case("ep", 2, MIXED, copies=2),
    *(Case("tp", 2, flags) for flags in (MIXED, (*MIXED, *SHARED))),
    Case("cp", 2, (*MIXED, *SHARED)),
    Case("pp", 2, (*EIGHT, *MIXED, *SHARED), copies=2),
]


def train(folder: str, *arguments: str) -> None:
    """Train as one rank and write a snapshot of the last step; with WORKBENCH_BACKEND=fake the other ranks do not
    exist.
    """
    config = load(None, arguments)
    backend = os.environ.get(BACKEND, "gloo")
    dist.init_process_group(backend, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    local, args = local_problem(config, dist.get_world_size()), model_args(config)
    world = build_world(local.degrees, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
    parts = model_parts(world.stage, args.n_layers, local.config.parallelism)
    models = build_parts(local.config, world, args, parts)
    for model in models:
        model.to_empty(device="cpu")
        init_weights(model, 1)
    model = join_parts(models)
    optimizer = build_optimizer(model, local.config.optimizer)
    compute = build_step(local.config, world, models, model, optimizer, lambda name: memory.phase(name))  # noqa: PLW0108 - made below
    memory = MemoryRecorder(folder, compute.model, compute.optimizer, freq=STEPS)
    training = local.config.training
    for number in range(1, STEPS + 1):
        with memory.step(number):
            with memory.phase("data_wait"):
                rows = torch.randint(256, (training.local_batch_size, training.seq_len // world.degrees.cp + 1))
            compute.forward_backward((rows[:, :-1], rows[:, 1:]))
            compute.update()
    memory.close()
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # a schedule's groups may abort when Python takes them down


def measured(case: Case, folder: str, start: Start = start_job) -> list[tuple[int, dict[str, int]]]:
    """Run the case, and return (peak in bytes, bytes by category) for each rank."""
    run(case, folder, start, ranks=case.ranks)
    return peaks(folder)


def alone(case: Case, rank: int, folder: str, start: Start = start_job) -> int:
    """Return the peak of a rank that runs alone, without communication."""
    place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(case.ranks), BACKEND: "fake"}
    run(case, folder, start, **place)
    [(peak, _)] = peaks(folder)
    return peak


def run(case: Case, folder: str, start: Start, ranks: int = 1, **environment: str) -> None:
    config = str(ROOT / "configs/fsdp.toml")
    start(__file__, folder, "--job.config_file", config, *case.overrides, ranks=ranks, **environment)


def peaks(folder: str) -> list[tuple[int, dict[str, int]]]:
    """Return (peak in bytes, bytes by category) for each rank, from the snapshots in a folder."""
    devices = analyze(discover(Path(folder)).of(Kind.SNAPSHOT)).data.devices
    return [(d.peak_allocated_bytes, d.categories) for d in sorted(devices, key=lambda d: d.rank)]


def estimated(case: Case) -> list[tuple[int, int, dict[str, int]]]:
    """Return the estimated (rank, peak in bytes, bytes by category) for the ranks in the estimate's report."""
    told = estimate(Request(config=str(ROOT / "configs/fsdp.toml"), nproc=case.ranks, overrides=case.overrides), None)
    return [(rank.first_rank, rank.peak_bytes, rank.categories) for rank in told.data.ranks]


def main() -> None:
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            real = measured(case, folder)
        for rank, told, foreseen in estimated(case):
            peak, held = real[rank]
            with tempfile.TemporaryDirectory() as folder:
                own = peak if MIXED[1] in case.flags else alone(case, rank, folder)
            errors = f"{told / peak - 1:+.1%} | {told / own - 1:+.1%}"
            print(f"| {case} | {rank} | {peak:,} | {own:,} | {told:,} | {errors} |", flush=True)
            if "--categories" in sys.argv:
                print({name: (size, foreseen.get(name, 0)) for name, size in held.items() if size})


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        train(*sys.argv[1:])
    else:
        main()
