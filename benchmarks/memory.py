"""Measure how long reading a large memory snapshot takes, compared with pickle.load and PyTorch's own tool.

    python benchmarks/memory.py [--entries 1000000]

Compares processor time, because wall time depends on what else runs. Exits with 1 if a target is missed.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from benchmarks import snapshots

PICKLE = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
COLD, SECOND, FACE = 1.3, 0.5, 0.1
"""Targets: the first reading as a multiple of pickle.load, the second one and a view in processor seconds."""
COLD_BYTES, SECOND_BYTES = 800e6, 150e6
RANKS, RANK_ENTRIES, JOBS, FLEET_BYTES = 64, 100_000, 2, 1 << 30
PROPORTIONAL_SET = re.compile(r"^Pss: +(\d+) kB", re.MULTILINE)
PEAK_RESIDENT = re.compile(r"^VmHWM:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True)
class Cost:
    """The cost of a process and its children: processor seconds, peak memory of all together in bytes, and wall
    seconds.

    `children` is the average number of child processes that were working; `main_bytes` and `child_bytes` are the peak
    memory of the process itself and of the largest child.
    """

    seconds: float
    bytes: int
    elapsed: float = 0.0
    children: float = 0.0
    main_bytes: int = 0
    child_bytes: int = 0


def measure(*command: str, output: int | IO[str] = subprocess.DEVNULL, errors: int | IO[str] | None = None) -> Cost:
    """Run a command and return its cost; what it prints goes to `output` and `errors`.

    Memory is sampled, because no counter adds it up over several processes. The one that the system keeps for a child,
    `ru_maxrss`, counts the memory of the process that started it, too.
    """
    began, most, main, child, families = time.monotonic(), 0, 0, 0, list[int]()
    with subprocess.Popen(command, stdout=output, stderr=errors) as process:
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            family = descendants(process.pid)
            alive = [process.pid, *family]
            main, child = max(main, peak_bytes(process.pid)), max([child, *map(peak_bytes, family)])
            most = max(most, main, child, sum(map(resident_bytes, alive)))
            families.append(len(family))
            time.sleep(0.02)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Cost(
        usage.ru_utime + usage.ru_stime,
        most,
        time.monotonic() - began,
        sum(families) / max(1, len(families)),
        main,
        child,
    )


def descendants(process: int) -> list[int]:
    """Return the process ids of all children, recursively."""
    try:
        children = " ".join(file.read_text() for file in Path("/proc", str(process)).glob("task/*/children"))
    except OSError:
        return []
    return [pid for child in map(int, children.split()) for pid in (child, *descendants(child))]


def resident_bytes(process: int) -> int:
    """Return the resident bytes of a process; memory that several processes share is divided among them."""
    try:
        rollup = Path("/proc", str(process), "smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(int(size) for size in PROPORTIONAL_SET.findall(rollup)) << 10


def peak_bytes(process: int) -> int:
    """Return the most bytes that a process had resident at once, since it began to run its present program."""
    try:
        status = Path("/proc", str(process), "status").read_text()
    except OSError:
        return 0
    return sum(int(size) for size in PEAK_RESIDENT.findall(status)) << 10


def commands(path: Path) -> dict[str, Cost]:
    """Return the cost of each method of reading the file, measured in separate processes."""
    inspect = (sys.executable, "-m", "workbench", "inspect", str(path), "--json")
    return {
        "pickle.load": measure(sys.executable, "-c", PICKLE, str(path)),
        "inspect, first time": measure(*inspect),
        "inspect, again": measure(*inspect),
        "_memory_viz stats": measure(sys.executable, "-m", "torch.cuda._memory_viz", "stats", str(path)),
    }


def fleet(folder: Path) -> Cost:
    """Return the cost of reading the files of all ranks of a job, two at a time, within a memory limit."""
    run = folder / "memory_snapshot" / "iteration_10"
    run.mkdir(parents=True)
    first = run / "rank0_memory_snapshot.pickle"
    subprocess.run([sys.executable, snapshots.__file__, str(first), str(RANK_ENTRIES)], check=True)
    for rank in range(1, RANKS):  # hard links: each is read as a file of its own
        os.link(first, run / f"rank{rank}_memory_snapshot.pickle")
    limits = ("--jobs", str(JOBS), "--max-memory", f"{FLEET_BYTES}")
    return measure(sys.executable, "-m", "workbench", "inspect", str(folder), "--json", *limits)


def faces(path: Path) -> dict[str, float]:
    """Return the processor seconds of each view that the terminal app or the dashboard requests; the slower of two
    calls.
    """
    from analyzers.memory import block_map, views
    from analyzers.memory.categories.grouping import GROUPINGS
    from analyzers.run import discover

    [artefact] = discover(path).artefacts
    last = len(views.timeline(artefact, buckets=1 << 30))
    segments, state = views.segments(artefact, last // 2), views.live_blocks(artefact, last // 2)
    questions: dict[str, Callable[[], object]] = {
        "the whole timeline": lambda: views.timeline(artefact, buckets=1000),
        "a window": lambda: views.timeline(artefact, buckets=1000, window=(last // 3, last // 2)),
        "categories at an entry": lambda: views.categories(artefact, entry=last // 2),
        "stacks at an entry": lambda: views.top_stacks(artefact, entry=last // 2),
        **{f"a tree by {by}": partial(views.tree, artefact, by=by, entry=last // 2) for by in GROUPINGS},
        "blocks at an entry": lambda: views.live_blocks(artefact, last // 2),
        "segments at an entry": lambda: views.segments(artefact, last // 2),
        "free at an entry": lambda: views.free_blocks(artefact, last // 2),
        "a map of blocks": lambda: block_map(segments, state, cells=100),
        "blocks at the end": lambda: views.blocks(artefact),
        "steps": lambda: views.steps(artefact),
        "events": lambda: views.events(artefact, first=last // 2),
        "reserved ranges": lambda: views.reserved_ranges(artefact),
        "bytes by pool": lambda: views.timeline_by(artefact, by="pool", buckets=1000),
        "search in frames": lambda: views.search(artefact, "forward"),
        "search by size": lambda: views.search(artefact, ">=1MiB"),
        "settings": lambda: views.settings(artefact),
        "life of an address": lambda: views.blocks_of_address(artefact, int(state["address"][0])),
    }
    return {name: max(timed(ask), timed(ask)) for name, ask in questions.items()}


def timed(ask: Callable[[], object]) -> float:
    began = time.process_time()
    ask()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WORKBENCH_CACHE"] = str(Path(folder, "cache"))
        path = Path(folder, "rank0_memory_snapshot.pickle")
        subprocess.run([sys.executable, snapshots.__file__, str(path), str(arguments.entries)], check=True)
        print(f"{arguments.entries} entries, {path.stat().st_size / 1e6:.0f} MB")
        costs, views = commands(path), faces(path)
        costs[f"{RANKS} ranks"] = fleet(Path(folder, "run"))
    for name, cost in costs.items():
        print(f"{name:<24}{cost.seconds:8.2f} s of processor time{cost.bytes / 1e6:8.0f} MB")
    for name, seconds in views.items():
        print(f"{name:<24}{seconds * 1e3:8.0f} ms")
    sys.exit(report_missed(costs, views))


def report_missed(costs: dict[str, Cost], views: dict[str, float]) -> bool:
    first, again = costs["inspect, first time"], costs["inspect, again"]
    kept = {
        f"first time within {COLD} of pickle.load": first.seconds <= COLD * costs["pickle.load"].seconds,
        f"first time within {COLD_BYTES / 1e6:.0f} MB": first.bytes <= COLD_BYTES,
        f"{RANKS} ranks within {FLEET_BYTES / 1e6:.0f} MB": costs[f"{RANKS} ranks"].bytes <= FLEET_BYTES,
        f"again within {SECOND} s": again.seconds <= SECOND,
        f"again within {SECOND_BYTES / 1e6:.0f} MB": again.bytes <= SECOND_BYTES,
        f"faces within {FACE * 1e3:.0f} ms": max(views.values()) <= FACE,
    }
    for target, met in kept.items():
        print(f"{'met   ' if met else 'MISSED'} {target}")
    return not all(kept.values())


if __name__ == "__main__":
    main()
