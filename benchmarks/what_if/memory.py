"""Measure how far a what-if prediction is from the run that it predicts: python -m benchmarks.what_if.memory."""

import sys
import tempfile
from functools import cache
from pathlib import Path

from analyzers.memory import analyze
from analyzers.memory.what_if import what_if
from analyzers.run import Artefact, Kind, discover
from benchmarks.start_job import Start, start_job

ROOT = Path(__file__).parents[2]
FULL = ("--activation_checkpoint.mode", "full")
SELECTIVE = ("--activation_checkpoint.mode", "selective")
BATCH, SEQ = ("--training.local_batch_size", "8"), ("--training.seq_len", "256")
LARGE = ("--model.flavor", "debugmodel_large")
HALF = ("--training.mixed_precision_param", "bfloat16")
# (ranks and flags of the recorded run, the changes, ranks and flags of the run that is predicted)
PAIRS = [
    (1, (), "batch=8", 1, BATCH),
    (1, (), "seq=2x", 1, SEQ),
    (1, (), "batch=2x,seq=2x", 1, (*BATCH, *SEQ)),
    (1, (), "ac=full", 1, FULL),
    (1, (), "ac=selective", 1, SELECTIVE),
    (1, (), "dp_shard=2", 2, ()),
    (1, (), "dp_shard=2,ac=full,batch=2x", 2, (*FULL, *BATCH)),
    (2, (), "batch=8", 2, BATCH),
    (2, (), "ac=full", 2, FULL),
    (2, (), "dp_shard=4", 4, ()),
    (2, HALF, "batch=8", 2, (*HALF, *BATCH)),
    (1, LARGE, "batch=8", 1, (*LARGE, *BATCH)),
    (1, LARGE, "ac=full", 1, (*LARGE, *FULL)),
    (1, LARGE, "dp_shard=2", 2, LARGE),
    (2, LARGE, "dp_shard=4", 4, LARGE),
]


def record(ranks: int, flags: tuple[str, ...], folder: Path, start: Start = start_job) -> Artefact:
    """Return rank 0's snapshot of a real run on a CPU."""
    fixed = ["--profiling.enable_memory_snapshot", "--profiling.profile_freq", "3", "--training.steps", "3"]
    config, target = str(ROOT / "configs/fsdp.toml"), str(folder)
    start("trainer", "--config", config, *fixed, *flags, "--job.dump_folder", target, ranks=ranks)
    return next(a for a in discover(folder).of(Kind.SNAPSHOT) if a.rank == 0)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:

        @cache
        def run(ranks: int, flags: tuple[str, ...]) -> Artefact:
            return record(ranks, flags, Path(folder, f"{ranks}{'_'.join(flags)}".replace("--", "")))

        for ranks, flags, changes, other_ranks, other_flags in PAIRS:
            [predicted] = what_if([run(ranks, flags)], changes)
            [device] = analyze([run(other_ranks, other_flags)]).data.devices
            real = device.peak_allocated_bytes
            name = f"{ranks} rank(s) {' '.join(flags[1::2])} {changes}"
            print(
                f"{name:45} was {predicted.peak_bytes:>11,} real {real:>11,} predicted {predicted.new_peak_bytes:>11,}",
                end=" ",
            )
            print(
                f"{predicted.new_peak_bytes / real - 1:>+7.1%} (change {real / predicted.peak_bytes - 1:+.0%})",
                flush=True,
            )
            if "--categories" in sys.argv:
                print("   predicted", {k: v for k, v in predicted.new_categories.items() if v})
                print("   real", {k: v for k, v in device.categories.items() if v})


if __name__ == "__main__":
    main()
