"""Measure what a job of many ranks costs: step logs, traces, snapshots and Flight Recorder dumps, one file a rank.

    python -m benchmarks.many_files [--only traces] [--ranks 64 256 1024] [--jobs 2]
    python -m benchmarks.many_files --only dumps --ranks 256 1024 4096 16384      the cost curve of a hang
    python -m benchmarks.many_files --only steps --ranks 512 --steps 2000         the logs of a long run
    python -m benchmarks.many_files --only snapshots --ranks 64 --snapshot 100000

One rank is the planted culprit: it loads data slowly, computes slowly, leaks, or never joins an operation. Prints the
processor seconds of all processes, and the peak memory of the main process and of the largest child, the first time
and again from the cache; then, from three sizes on, the fitted model of the costs and what it gives for 100,000 ranks.
Exits with 1 if an answer is wrong or a target is missed.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks import hangs, snapshots, traced_job
from benchmarks.cost import Cost, measure

TRACE_S = 20 / 300
"""Target: the processor seconds of a small trace, of which a fresh interpreter for each file took 0.33."""
FAR = 100_000
"""The number of ranks for which the model is asked."""
SLOW = 1.5
"""How many times as long the kernels of a slow rank take."""
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
LATE_MS = 40


@dataclass(frozen=True)
class Size:
    """The size of each file: the entries of a snapshot, the steps of a log, the entries of a dump."""

    snapshot: int = 5000
    steps: int = 300
    dump: int = 100


def culprit(ranks: int) -> int:
    """Return the rank with the planted fault, which is neither the first nor the last one."""
    return 643 % ranks


def write_logs(folder: Path, ranks: int, steps: int, late_rank: int, late_from: int) -> None:
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


def step_logs(folder: Path, ranks: int, size: Size) -> None:
    (folder / "steps").mkdir(parents=True)
    write_logs(folder, ranks, size.steps, culprit(ranks), size.steps // 2)


def traces(folder: Path, ranks: int, _size: Size = Size()) -> None:
    fault = traced_job.Fault(culprit(ranks), factor=SLOW)
    parts = traced_job.llama(layers=4, shards=8)
    traced_job.job(folder / "profile_traces" / "iteration_10", ranks, 2, parts, faults=[fault])


def memory_snapshots(folder: Path, ranks: int, size: Size) -> None:
    home = folder / "memory_snapshot" / "iteration_10"
    home.mkdir(parents=True)
    for rank in range(ranks):
        leak = 64 << 20 if rank == culprit(ranks) else 0
        snapshots.write(home / f"rank{rank}_memory_snapshot.pickle", size.snapshot, rank, leak)


def dumps(folder: Path, ranks: int, size: Size) -> None:
    hangs.big_set(folder / "dumps", ranks, size.dump)


@dataclass(frozen=True)
class Kind:
    """A kind of files: the command that reads them, how they are written, and the class that the verdict must have."""

    command: str
    write: Callable[[Path, int, Size], None]
    verdict: str


KINDS = {
    "steps": Kind("steps", step_logs, "straggler"),
    "traces": Kind("trace", traces, "straggler"),
    "snapshots": Kind("inspect", memory_snapshots, "leak"),
    "dumps": Kind("hang", dumps, "host_stuck"),
}


@dataclass(frozen=True)
class Row:
    """What the files of some ranks cost, the first time and again, and what is wrong with the answer ("": nothing)."""

    ranks: int
    bytes: int
    first: Cost
    again: Cost
    wrong: str

    def cells(self) -> list[str]:
        first, again = self.first, self.again
        return [
            f"{self.ranks:,}", f"{self.bytes / 1e6:,.1f}",
            f"{first.seconds:.1f}", f"{1e3 * first.seconds / self.ranks:.1f}",
            f"{first.main_bytes / 1e6:.0f}", f"{first.child_bytes / 1e6:.0f}",
            f"{again.seconds:.1f}", f"{again.main_bytes / 1e6:.0f}", self.wrong or "right",
        ]  # fmt: skip


HEAD = ("ranks", "MB", "CPU s", "ms a rank", "memory, MB", "largest child, MB", "again, CPU s", "memory, MB", "answer")


def ask(kind: Kind, folder: Path, jobs: int) -> tuple[Cost, dict[str, object]]:
    """Return what a question about a folder costs, and the verdict of its answer."""
    with tempfile.TemporaryFile("w+") as output:
        command = (sys.executable, "-m", "workbench", kind.command, str(folder), "--json", "--jobs", str(jobs))
        cost = measure(*command, output=output)
        output.seek(0)
        return cost, json.load(output)["verdict"]


def measured(kind: Kind, ranks: int, jobs: int, folder: Path, size: Size) -> Row:
    """Write the files of a kind, and return what it costs to answer from them and again from the cache."""
    kind.write(folder, ranks, size)
    content = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    (first, verdict), (again, second) = ask(kind, folder, jobs), ask(kind, folder, jobs)
    wrong = f"wrong: {verdict['class']} {verdict['ranks']}"
    if verdict != second:
        wrong = "the cache gives another answer"
    elif (verdict["class"], verdict["ranks"]) == (kind.verdict, [culprit(ranks)]):
        wrong = ""
    return Row(ranks, content, first, again, wrong)


def model(ranks: Sequence[int], values: Sequence[float]) -> tuple[str, float]:
    """Return the model a + b n + c n^2 (a, b, c >= 0) that fits the values at n ranks, as text and its value for `FAR`.

    The squares of the relative errors are least, so that small jobs count as much as large ones.
    """
    n, wanted = np.array(ranks, float), np.array(values)
    terms = {"": n**0, " n": n, " n²": n * n}
    while True:
        table = np.column_stack([*terms.values()]) / wanted[:, None]
        factors = np.linalg.lstsq(table / np.abs(table).max(axis=0), np.ones(len(n)), rcond=None)[0]
        factors /= np.abs(table).max(axis=0)
        if (factors >= 0).all():
            break
        del terms[list(terms)[int(factors.argmin())]]
    text = " + ".join(f"{factor:.3g}{name}" for factor, name in zip(factors, terms, strict=True))
    far = {"": 1.0, " n": float(FAR), " n²": float(FAR) ** 2}
    return text, float(sum(factor * far[name] for factor, name in zip(factors, terms, strict=True)))


def print_models(rows: Sequence[Row]) -> None:
    """Print the models of the costs of a kind of files, and what they give for `FAR` ranks."""
    curves = {
        "CPU s": [row.first.seconds for row in rows],
        "memory, MB": [row.first.main_bytes / 1e6 for row in rows],
        "again, CPU s": [row.again.seconds for row in rows],
    }
    for name, values in curves.items():
        text, far = model([row.ranks for row in rows], values)
        print(f"{name}: {text}; {FAR:,} ranks: {far:,.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[320], help="multiples of 64")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--snapshot", type=int, default=Size.snapshot, help="entries of a snapshot")
    parser.add_argument("--steps", type=int, default=Size.steps, help="steps of a log")
    parser.add_argument("--dump", type=int, default=Size.dump, help="entries of a dump")
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    asked = parser.parse_args()
    size, failed = Size(asked.snapshot, asked.steps, asked.dump), False
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"WORKBENCH_CACHE": f"{home}/cache", "PYTHONPYCACHEPREFIX": f"{home}/bytecode"}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled once, as an installation does
        for name in asked.only:
            measured(
                KINDS[name], 64 if name == "dumps" else 4, asked.jobs, Path(home, name), Size()
            )  # compiles modules
            print(f"\n{name}, load {os.getloadavg()[0]:.0f}\n| {' | '.join(HEAD)} |\n|{'--:|' * len(HEAD)}", flush=True)
            rows = []
            for ranks in asked.ranks:
                folder = Path(home, f"{name} {ranks}")
                rows.append(measured(KINDS[name], ranks, asked.jobs, folder, size))
                shutil.rmtree(folder)
                shutil.rmtree(Path(home, "cache"), ignore_errors=True)
                print(f"| {' | '.join(rows[-1].cells())} |", flush=True)
                failed |= bool(rows[-1].wrong) or (name == "traces" and rows[-1].first.seconds > TRACE_S * ranks)
            if len(rows) > 2:
                print_models(rows)
    sys.exit(failed)


if __name__ == "__main__":
    main()
