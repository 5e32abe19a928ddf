"""Measure how far `workbench estimate` is from the measured peak of the same run: python -m benchmarks.estimate."""

import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from analyzers.memory import analyze
from analyzers.run import Kind, discover
from benchmarks.start_job import Start, start_job
from workbench.commands.estimate import estimate
from workbench.launch.plan import Request

ROOT = Path(__file__).parents[1]
LARGE = ("--model.flavor", "debugmodel_large")
FULL, SELECTIVE = ("--activation_checkpoint.mode", "full"), ("--activation_checkpoint.mode", "selective")
VALIDATION = ("--validation.enable", "--validation.freq", "1", "--validation.steps", "2",
              "--validation.local_batch_size", "64")  # fmt: skip
OP = (*SELECTIVE, "--activation_checkpoint.selective_ac_option", "op")


class Case(NamedTuple):
    """A run: its number of ranks, and its changes to configs/NAME.toml."""

    config: str
    ranks: int
    flags: tuple[str, ...] = ()

    def __str__(self) -> str:
        shown = [flag.rpartition(".")[2] if flag.startswith("--") else flag for flag in self.flags]
        return f"{self.config} x {self.ranks} {' '.join(shown)}".rstrip()


CASES = [
    Case("fsdp", 1),
    Case("ddp", 2),
    Case("fsdp", 2),
    Case("hsdp", 4),
    Case("fsdp", 2, FULL),
    Case("fsdp", 2, SELECTIVE),
    Case("fsdp", 2, OP),
    Case("fsdp", 2, ("--training.mixed_precision_param", "bfloat16")),
    Case("ddp", 2, ("--training.mixed_precision_param", "bfloat16")),
    Case("fsdp", 1, (*LARGE, "--training.local_batch_size", "1")),
    Case("fsdp", 2, LARGE),
    Case("ddp", 2, (*LARGE, *FULL)),
    Case("fsdp", 2, ("--training.global_batch_size", "16")),
    Case("fsdp", 1, VALIDATION),
    Case("fsdp", 2, (*VALIDATION, *FULL)),
    Case("ddp", 2, (*VALIDATION, "--training.mixed_precision_param", "bfloat16")),
    Case("fsdp", 2, (*VALIDATION, *LARGE, "--training.local_batch_size", "1")),
    *(Case("fsdp", 2, (*VALIDATION, f"--parallelism.{name}_parallel_degree", "2")) for name in ("tensor", "context")),
    Case("fsdp", 2, (*VALIDATION, "--parallelism.pipeline_parallel_degree", "2", "--training.local_batch_size", "8")),
]


def measured(case: Case, folder: Path, start: Start = start_job) -> tuple[int, dict[str, int]]:
    """Run the case on the CPU for three steps, and return rank 0's (peak in bytes, bytes by category)."""
    flags = [
        "--profiling.enable_memory_snapshot", "--profiling.profile_freq", "3", "--training.steps", "3",
        "--job.dump_folder", str(folder), *case.flags,
    ]  # fmt: skip
    start("trainer", "--config", str(ROOT / f"configs/{case.config}.toml"), *flags, ranks=case.ranks)
    report = analyze(discover(folder).of(Kind.SNAPSHOT))
    first = next(device for device in report.data.devices if device.rank == 0)
    return first.peak_allocated_bytes, first.categories


def estimated(case: Case) -> tuple[int, dict[str, int]]:
    """Return the estimated (peak in bytes, bytes by category) of the case, without running it."""
    request = Request(config=str(ROOT / f"configs/{case.config}.toml"), nproc=case.ranks, overrides=case.flags)
    first = estimate(request, None).data.ranks[0]
    return first.peak_bytes, first.categories


def compared(case: Case, folder: Path, start: Start = start_job) -> dict[str, Any]:
    (real, held), (rehearsed, foreseen) = measured(case, folder, start), estimated(case)
    return {
        "case": str(case), "measured": real, "estimated": rehearsed, "error": rehearsed / real - 1,
        "categories": {name: (held.get(name, 0), foreseen.get(name, 0)) for name in sorted({*held, *foreseen})},
    }  # fmt: skip


def main() -> None:
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            row = compared(case, Path(folder))
        print(f"{row['case']:60} {row['measured']:>12,} {row['estimated']:>12,} {row['error']:>+8.2%}", flush=True)
        if "--json" in sys.argv:
            print(msgspec.json.encode(row).decode())


if __name__ == "__main__":
    main()
