"""Measure the processor time and memory of `workbench steps` for the logs of a long run, without and with a cache.

    python benchmarks/steps.py [--ranks 512] [--steps 2000]

The logs are written to a temporary folder (640 MB at 512 x 2000). From step 300 on, rank 5 waits 40 ms longer for data,
which the verdict must say.
"""

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

MS = 1_000_000
USUAL_MS = {
    "gc": 0, "data_wait": 3, "h2d": 0.2, "fwd": 120, "bwd": 240, "grad_clip": 9, "optim": 15, "loss_sync": 8,
    "log": 0.3, "ckpt_save": 0.02,
}  # fmt: skip
LATE_RANK, LATE_FROM, LATE_MS = 5, 300, 40


def write_log(folder: Path, rank: int, ranks: int, steps: int) -> None:
    """Write the step log of one rank; the other ranks wait for the late rank in their backward pass."""
    chance = random.Random(rank)
    header = {
        "schema": "workbench.steps/1",
        "rank": rank,
        "world_size": ranks,
        "device": "cuda",
        "host": f"h{rank // 8}",
    }
    lines, now = [header], 1_800_000_000_000 * MS
    for step in range(1, steps + 1):
        late = LATE_MS * (step >= LATE_FROM)
        phases = {name: int(ms * MS * (1 + chance.random() / 50)) for name, ms in USUAL_MS.items()}
        phases["data_wait"] += late * MS * (rank == LATE_RANK)
        phases["bwd"] += late * MS * (rank != LATE_RANK)
        whole = sum(phases.values()) + MS
        lines.append(
            {
                "step": step,
                "start_ns": now,
                "dur_ns": whole,
                "phases": phases,
                "cpu_ns": phases,
                "device_ns": {},
                "residual_ns": MS,
                "tokens": 8192,
                "loss": 11 - step**0.3,
                "local_loss": 11 - step**0.3,
                "grad_norm": 1.0,
                "memory_bytes": 1 << 34,
                "reserved_bytes": 1 << 34,
                "alloc_retries": 0,
                "tags": ["first", "gc"] if step == 1 else [],
                "seqs": {"0": 20 * step},
            }
        )
        now += whole
    text = "\n".join(json.dumps(line, separators=(",", ":")) for line in lines)
    (folder / "steps" / f"rank_{rank}.jsonl").write_text(text + "\n")


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
        for rank in range(arguments.ranks):
            write_log(folder, rank, arguments.ranks, arguments.steps)
        logs = sum(path.stat().st_size for path in folder.rglob("*.jsonl"))
        print(f"{arguments.ranks} ranks x {arguments.steps} steps, {logs / 1e6:.0f} MB")
        for name in ("cold", "cached"):
            seconds, mebibytes, sentence = measured(folder)
            print(f"{name}: {seconds:.1f} processor-s, at most {mebibytes} MiB in a process: {sentence}")


if __name__ == "__main__":
    main()
