"""Reading large profiler traces, against orjson.loads and HolisticTraceAnalysis on the same file.

    python benchmarks/traces.py [--events 1000000] [--hta PYTHON]

`PYTHON` is an interpreter that has `traceinsight` or `HolisticTraceAnalysis`, and orjson; without it they are left out.
HTA is asked for what our one answer holds, as far as it can tell: times, kernels, overlap, idle time, launches, queues,
copies. Compares processor time, as wall time depends on what else runs.
Exits with 1 where a target is missed.
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

import traced_job
from memory import Cost, measure

COLD, SECOND, LARGER, FASTER = 3.0, 0.5, 3.2, 25
"""Targets: processor seconds of the first and the second opening, of three times the events, and against HTA."""
COLD_BYTES, LARGER_BYTES = 250e6, 450e6
RANKS, RANK_EVENTS, JOBS, FLEET_BYTES = 64, 200_000, 2, 1 << 30
FLEET = f"trace, {RANKS} ranks of {RANK_EVENTS} events"
BUSY = 1.6
"""Of two readers, on average from the first import to the last byte of the answer."""
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


def as_installed(folder: Path) -> None:
    """Modules are compiled once, before anything is measured, as an installation does."""
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    traced_job.large(folder / "small_trace.json.gz", 1000)
    subprocess.run(ours(folder / "small_trace.json.gz"), check=True, stdout=subprocess.DEVNULL)


def exact(path: Path) -> bool:
    """Do the answers equal those of a sweep over every bound, in the plainest way there is?"""
    done = subprocess.run(ours(path), check=True, stdout=subprocess.PIPE)
    [found] = json.loads(done.stdout)["data"]["ranks"]
    events = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)["traceEvents"]
    expected = swept([bound for event in events for bound in bounds(event)])
    return all(found[name] == expected[name] for name in FIELDS)


def bounds(event: dict) -> list[tuple[int, int, str]]:
    """(time, whether it begins or ends, kind) of device work."""
    if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
        return []
    kind = "memory" if event["cat"] != "kernel" else "communication" if "nccl" in event["name"] else "compute"
    start, dur = (int(event[name] * 1000) for name in ("ts", "dur"))
    return [(start, 1, kind), (start + dur, -1, kind)]


def swept(changes: list[tuple[int, int, str]]) -> dict[str, int]:
    changes.sort()
    found = dict.fromkeys(FIELDS, 0) | {"span_ns": changes[-1][0] - changes[0][0], "device_events": len(changes) // 2}
    running, before = {"compute": 0, "communication": 0, "memory": 0}, changes[0][0]
    for at, change, kind in changes:
        on = {name for name, count in running.items() if count}
        for name in (*on, "busy" * bool(on), "exposed_communication" * ("communication" in on and "compute" not in on)):
            if f"{name}_ns" in found:
                found[f"{name}_ns"] += at - before
        running[kind] += change
        before = at
    return found


def fleet(folder: Path) -> Cost:
    """All ranks of a job, two readers at a time, within a limit on their memory."""
    run = folder / "profile_traces" / "iteration_10"
    run.mkdir(parents=True)
    one = run / "one.json.gz"
    traced_job.large(one, RANK_EVENTS)
    head, events = gzip.decompress(one.read_bytes()).split(b'"traceEvents"', 1)
    one.unlink()
    packed = gzip.compress(b'"traceEvents"' + events, 1)
    for rank in range(RANKS):
        told = head.replace(b'"rank": 0', b'"rank": %d' % rank).replace(b'"world_size": 1', b'"world_size": %d' % RANKS)
        (run / f"rank{rank}_trace.json.gz").write_bytes(gzip.compress(told, 1) + packed)
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
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WORKBENCH_CACHE"] = str(Path(folder, "cache"))
        as_installed(Path(folder))
        path, larger = Path(folder, "rank0_trace.json.gz"), Path(folder, "larger_trace.json.gz")
        traced_job.large(path, asked.events)
        print(f"{asked.events} events, {path.stat().st_size / 1e6:.0f} MB gzipped")
        costs = {"trace, first time": measure(*ours(path)), "trace, again": measure(*ours(path))}
        costs |= rivals(path, asked.hta)
        traced_job.large(larger, 3 * asked.events)
        costs["trace, three times the events"] = measure(*ours(larger))
        if asked.ranks:
            costs[FLEET] = fleet(Path(folder, "run"))
        answers_hold = exact(path)
    for name, cost in costs.items():
        print(
            f"{name:<40}{cost.seconds:8.2f} s of processor time{cost.bytes / 1e6:8.0f} MB"
            f"{cost.seconds / cost.elapsed:8.2f} processors{cost.children:6.2f} readers",
            flush=True,
        )
    sys.exit(report_missed(costs, asked.events / 1e6, answers_hold=answers_hold))


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
