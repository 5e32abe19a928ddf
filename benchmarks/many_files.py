"""Measure what a job with many small artefacts costs: traces, snapshots and Flight Recorder dumps of many ranks.

    python -m benchmarks.many_files [--files 300] [--dumps 1024] [--jobs 2]
    python -m benchmarks.many_files --only dumps --dumps 64 256 1024 4096 16384      the cost curve of a hang

Prints the processor seconds and the peak memory of all processes together, the first time and again from the cache.
Exits with 1 if a target is missed.
"""

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import hangs
import snapshots
import traced_job
from memory import Cost, measure

TRACE_S = 20 / 300
"""Target: the processor seconds of a small trace, of which a fresh interpreter for each file took 0.33."""


def traces(folder: Path, files: int) -> None:
    traced_job.job(folder / "profile_traces" / "iteration_10", files, 2, traced_job.llama(layers=4))


def memory_snapshots(folder: Path, files: int) -> None:
    home = folder / "memory_snapshot" / "iteration_10"
    home.mkdir(parents=True)
    for rank in range(files):
        snapshots.write(home / f"rank{rank}_memory_snapshot.pickle", 2000, rank)


def dumps(folder: Path, files: int) -> None:
    hangs.big_set(folder / "dumps", files, 100)


KINDS: dict[str, tuple[str, Callable[[Path, int], None]]] = {
    "traces": ("trace", traces),
    "snapshots": ("inspect", memory_snapshots),
    "dumps": ("hang", dumps),
}


def costs(kind: str, files: int, jobs: int, folder: Path) -> tuple[Cost, Cost]:
    """Write the artefacts of a kind, and return what it costs to answer from the files and again from the cache."""
    command, write = KINDS[kind]
    write(folder, files)
    ask = (sys.executable, "-m", "workbench", command, str(folder), "--json", "--jobs", str(jobs))
    return measure(*ask), measure(*ask)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=300, help="traces, and snapshots")
    parser.add_argument("--dumps", type=int, nargs="+", default=[1024], help="multiples of 64")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", nargs="*", choices=KINDS, default=list(KINDS))
    asked = parser.parse_args()
    missed = False
    print("| files | first, CPU s | memory, MB | again, CPU s | memory, MB |\n|---|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as home:
        os.environ |= {"WORKBENCH_CACHE": f"{home}/cache", "PYTHONPYCACHEPREFIX": f"{home}/bytecode"}
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled once, as an installation does
        measure(sys.executable, "-m", "workbench", "capabilities", "--json")
        for kind in asked.only:
            for files in asked.dumps if kind == "dumps" else [asked.files]:
                folder = Path(home, f"{kind} {files}")
                first, again = costs(kind, files, asked.jobs, folder)
                shutil.rmtree(folder)
                cells = (f"{cost.seconds:.1f} | {cost.bytes / 1e6:.0f}" for cost in (first, again))
                print(f"| {files} {kind} | {' | '.join(cells)} |", flush=True)
                missed |= kind == "traces" and first.seconds > TRACE_S * files
    sys.exit(missed)


if __name__ == "__main__":
    main()
