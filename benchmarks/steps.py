"""Measure the processor time and memory of `workbench steps` for the logs of a long run, without and with a cache.

    python benchmarks/steps.py [--ranks 512] [--steps 2000]

The logs are written to a temporary folder (640 MB at 512 x 2000). From step 300 on, rank 5 waits 40 ms longer for data,
which the verdict must say.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

MS = 1_000_000
USUAL_MS = {
    "gc": 0, "data_wait": 3, "h2d": 0.2, "fwd": 120, "bwd": 240, "grad_clip": 9, "optim": 15, "loss_sync": 8,
    "log": 0.3, "ckpt_save": 0.02,
}  # fmt: skip
NAMES = [*USUAL_MS]
PHASES = ",".join(f'"{name}":%d' for name in NAMES)
LINE = (
    '{"step":%d,"start_ns":%d,"dur_ns":%d,"phases":{%s},"cpu_ns":{%s},"device_ns":{},"residual_ns":1000000,'
    '"tokens":8192,"loss":%r,"local_loss":%r,"grad_norm":1.0,"memory_bytes":17179869184,"reserved_bytes":17179869184,'
    '"alloc_retries":0,"tags":[%s],"seqs":{"0":%d}}'
)
TAGS = ("", '"first","gc"')
LATE_RANK, LATE_FROM, LATE_MS = 5, 300, 40


def write_logs(folder: Path, ranks: int, steps: int, late_rank: int = LATE_RANK, late_from: int = LATE_FROM) -> None:
    """Write the step logs of all ranks to the folder `steps` in `folder`; one rank is late from a step on."""
    for rank in range(ranks):
        lines = log_lines(rank, ranks, steps, LATE_MS * (rank == late_rank), LATE_MS * (rank != late_rank), late_from)
        (folder / "steps" / f"rank_{rank}.jsonl").write_text("\n".join(lines) + "\n")


def log_lines(rank: int, ranks: int, steps: int, late_ms: int, waiting_ms: int, late_from: int) -> Iterator[str]:
    """Yield the lines of a log: from a step on, the rank takes longer for its data, or for its backward pass, in which
    it waits for the others.
    """
    noise = np.random.default_rng(rank).random((steps, len(USUAL_MS))) / 50
    phases = (np.array([*USUAL_MS.values()]) * MS * (1 + noise)).astype(int)
    phases[late_from - 1 :, NAMES.index("data_wait")] += late_ms * MS
    phases[late_from - 1 :, NAMES.index("bwd")] += waiting_ms * MS
    durations = phases.sum(axis=1) + MS
    starts = 1_800_000_000_000 * MS + np.cumsum(durations) - durations
    yield f'{{"schema":"workbench.steps/1","rank":{rank},"world_size":{ranks},"device":"cuda","host":"h{rank // 8}"}}'
    for step, (start, whole, row) in enumerate(
        zip(starts.tolist(), durations.tolist(), phases.tolist(), strict=True), 1
    ):
        parts = PHASES % tuple(row)
        yield LINE % (step, start, whole, parts, parts, 11 - step**0.3, 11 - step**0.3, TAGS[step == 1], 20 * step)


def measured(folder: Path) -> tuple[float, int, str]:
    """Return (processor seconds, largest resident set of a child process in MiB, verdict)."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "workbench", "steps", str(folder), "--json"]
    environment = os.environ | {"WORKBENCH_CACHE": str(folder / "cache")}
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, after.ru_maxrss >> 10, json.loads(done.stdout)["verdict"]["sentence"]


def main() -> None:
    """Write the logs, read them twice, and print the costs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=512)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "steps").mkdir()
        write_logs(folder, arguments.ranks, arguments.steps)
        logs = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
        print(f"{arguments.ranks} ranks x {arguments.steps} steps, {logs / 1e6:.0f} MB")
        for name in ("cold", "cached"):
            seconds, mebibytes, sentence = measured(folder)
            print(f"{name}: {seconds:.1f} processor-s, at most {mebibytes} MiB in a process: {sentence}")


if __name__ == "__main__":
    main()
