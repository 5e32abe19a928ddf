"""Measure how fast large profiler traces are read, compared with orjson.loads and HolisticTraceAnalysis (HTA).

    python benchmarks/traces.py [--events 1000000] [--hta PYTHON]

`PYTHON` is an interpreter that has `traceinsight` or `HolisticTraceAnalysis`, and orjson; without it they are left out.
HTA computes what our report contains, as far as it can: times, kernels, overlap, idle time, launches, queues, copies.
Compares processor time, because wall time depends on what else runs. Exits with 1 if a target is missed.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

from benchmarks import traced_job
from benchmarks.memory import Cost, measure

COLD, SECOND, LARGER, FASTER = 3.0, 0.5, 3.2, 25
"""Targets: processor seconds of the first opening of a million events, and of the second; how much longer three times
the events may take; how many times as fast as HTA."""
COLD_BYTES, LARGER_BYTES = 250e6, 450e6
RANKS, RANK_EVENTS, JOBS, FLEET_BYTES = 64, 200_000, 2, 1 << 30
FLEET = f"trace, {RANKS} ranks of {RANK_EVENTS} events"
BUSY = 1.6
"""Target: how many of two reader processes are busy on average while the ranks of a job are read."""
FIELDS = ("span_ns", "busy_ns", "compute_ns", "communication_ns", "exposed_communication_ns", "device_events")

LOADS = "import gzip, orjson, sys; orjson.loads(gzip.open(sys.argv[1]).read())"
HTA = """
import shutil, sys, tempfile
from pathlib import Path
from hta.trace_analysis import TraceAnalysis
with tempfile.TemporaryDirectory() as folder:
    shutil.copy(sys.argv[1], Path(folder, "rank0_trace.json.gz"))
    found = TraceAnalysis(trace_files={0: str(Path(folder, "rank0_trace.json.gz"))}, trace_dir=folder)
    times = found.get_temporal_breakdown(visualize=False)
    found.get_gpu_kernel_breakdown(visualize=False)
    found.get_comm_comp_overlap(visualize=False)
    found.get_idle_time_breakdown(visualize=False)
    found.get_cuda_kernel_launch_stats(visualize=False)
    found.get_queue_length_summary()
    found.get_memory_bw_summary()
    print(times.to_string())
"""


def ours(path: Path, *options: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "workbench", "trace", str(path), "--json", *options)


def compile_modules(folder: Path) -> None:
    """Compile all modules to bytecode before measuring, as an installation does."""
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    traced_job.large(folder / "small_trace.json.gz", 1000)
    subprocess.run(ours(folder / "small_trace.json.gz"), check=True, stdout=subprocess.DEVNULL)


def is_exact(path: Path) -> bool:
    """Return whether the report equals a plain sweep over all starts and ends."""
    done = subprocess.run(ours(path), check=True, stdout=subprocess.PIPE)
    [account] = json.loads(done.stdout)["data"]["ranks"]
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    expected = swept([bound for event in events for bound in bounds(event)])
    return all(account[name] == expected[name] for name in FIELDS)


def bounds(event: dict) -> list[tuple[int, int, str]]:
    """Return the start and end of an event as (time in ns, 1 or -1, kind of work); empty if it is no device work."""
    if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
        return []
    kind = "memory" if event["cat"] != "kernel" else "communication" if "nccl" in event["name"] else "compute"
    start, dur = (int(event[name] * 1000) for name in ("ts", "dur"))
    return [(start, 1, kind), (start + dur, -1, kind)]


def swept(changes: list[tuple[int, int, str]]) -> dict[str, int]:
    """Return the busy and idle times of a device, by walking over the starts and ends of its work one by one."""
    changes.sort()
    sums = dict.fromkeys(FIELDS, 0) | {"span_ns": changes[-1][0] - changes[0][0], "device_events": len(changes) // 2}
    running, before = {"compute": 0, "communication": 0, "memory": 0}, changes[0][0]
    for at, change, kind in changes:
        on = {name for name, count in running.items() if count}
        for name in (*on, "busy" * bool(on), "exposed_communication" * ("communication" in on and "compute" not in on)):
            if f"{name}_ns" in sums:
                sums[f"{name}_ns"] += at - before
        running[kind] += change
        before = at
    return sums


def fleet(folder: Path) -> Cost:
    """Return the cost of reading the traces of all ranks of a job, with two reader processes and a memory limit."""
    run = folder / "profile_traces" / "iteration_10"
    run.mkdir(parents=True)
    first = run / "first.json.gz"
    traced_job.large(first, RANK_EVENTS)
    head, events = gzip.decompress(first.read_bytes()).split(b'"traceEvents"', 1)
    first.unlink()
    packed = gzip.compress(b'"traceEvents"' + events, 1)
    for rank in range(RANKS):
        header = head.replace(b'"rank": 0', b'"rank": %d' % rank)
        header = header.replace(b'"world_size": 1', b'"world_size": %d' % RANKS)
        (run / f"rank{rank}_trace.json.gz").write_bytes(gzip.compress(header, 1) + packed)
    return measure(*ours(folder, "--jobs", str(JOBS), "--max-memory", f"{FLEET_BYTES}"))


def rivals(path: Path, python: str | None) -> dict[str, Cost]:
    if python is None:
        return {}
    return {"orjson.loads": measure(python, "-c", LOADS, str(path)), "HTA": measure(python, "-c", HTA, str(path))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--hta", help="an interpreter that has HolisticTraceAnalysis")
    parser.add_argument("--ranks", action="store_true", help=f"also {RANKS} ranks of {RANK_EVENTS} events")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WORKBENCH_CACHE"] = str(Path(folder, "cache"))
        compile_modules(Path(folder))
        path, larger = Path(folder, "rank0_trace.json.gz"), Path(folder, "larger_trace.json.gz")
        traced_job.large(path, arguments.events)
        print(f"{arguments.events} events, {path.stat().st_size / 1e6:.0f} MB gzipped")
        costs = {"trace, first time": measure(*ours(path)), "trace, again": measure(*ours(path))}
        costs |= rivals(path, arguments.hta)
        traced_job.large(larger, 3 * arguments.events)
        costs["trace, three times the events"] = measure(*ours(larger))
        if arguments.ranks:
            costs[FLEET] = fleet(Path(folder, "run"))
        answers_hold = is_exact(path)
    for name, cost in costs.items():
        print(
            f"{name:<40}{cost.seconds:8.2f} s of processor time{cost.bytes / 1e6:8.0f} MB"
            f"{cost.seconds / cost.elapsed:8.2f} processors{cost.children:6.2f} readers",
            flush=True,
        )
    sys.exit(report_missed(costs, arguments.events / 1e6, answers_hold=answers_hold))


def report_missed(costs: dict[str, Cost], millions: float, *, answers_hold: bool) -> bool:
    first, again, larger = costs["trace, first time"], costs["trace, again"], costs["trace, three times the events"]
    kept = {
        "the exact answer": answers_hold,
        f"first time within {COLD * millions:.1f} s": first.seconds <= COLD * millions,
        f"first time within {COLD_BYTES / 1e6:.0f} MB": first.bytes <= COLD_BYTES,
        f"again within {SECOND} s": again.seconds <= SECOND,
        f"three times the events within {LARGER} times the time": larger.seconds <= LARGER * first.seconds,
        f"three times the events within {LARGER_BYTES / 1e6:.0f} MB": larger.bytes <= LARGER_BYTES,
    }
    if (ranks := costs.get(FLEET)) is not None:
        kept[f"{FLEET} within {FLEET_BYTES / 1e6:.0f} MB"] = ranks.bytes <= FLEET_BYTES
        kept[f"{FLEET} keep {BUSY} readers at work"] = ranks.children >= BUSY
    if "HTA" in costs:
        kept[f"{FASTER} times as fast as HTA"] = costs["HTA"].seconds >= FASTER * first.seconds
    for target, met in kept.items():
        print(f"{'met   ' if met else 'MISSED'} {target}")
    return not all(kept.values())


if __name__ == "__main__":
    main()
