"""Generators of 28 kinds of files that are small on the disk but expensive to analyse: `KINDS[name](folder)`."""

import json
import pickle
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

Generator = Callable[[Path], None]
KINDS: dict[str, Generator] = {}
LAST_RANK = (1 << 18) - 1
MANY_RANKS = 200_000
Json = Mapping[str, object]


def kind(function: Generator) -> Generator:
    """Register a generator under its name."""
    KINDS[function.__name__] = function
    return function


# Flight Recorder dumps.


def operation(number: int, group: str = "0", **other: object) -> dict[str, object]:
    return {
        "record_id": number, "pg_id": 0, "process_group": (group, "default_pg"), "collective_seq_id": number + 1,
        "p2p_seq_id": 0, "op_id": number + 1, "profiling_name": "nccl:all_reduce", "time_created_ns": number,
        "input_sizes": [[1]], "output_sizes": [[1]], "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": "scheduled", "time_discovered_started_ns": None, "time_discovered_completed_ns": None,
        "retired": False, "timeout_ms": 1000, "is_p2p": False, "frames": [], **other,
    }  # fmt: skip


def write_dump(
    folder: Path, rank: int, operations: Iterable[Json], groups: Mapping[str, list[int]] | None = None
) -> None:
    config = {name: {"name": name, "desc": name, "ranks": str(ranks)} for name, ranks in (groups or {}).items()}
    dump = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": list(operations)}
    (folder / f"rank_{rank}").write_bytes(pickle.dumps(dump))


@kind
def dump_of_the_last_rank(folder: Path) -> None:
    """Write a single dump, of the highest rank number that is accepted: all other ranks are missing."""
    write_dump(folder, LAST_RANK, [operation(0)])


@kind
def dumps_of_many_groups(folder: Path) -> None:
    """Write dumps of two ranks with 20,000 different groups each."""
    groups = {str(n): [0, 1] for n in range(20_000)}
    for rank in (0, 1):
        write_dump(folder, rank, [operation(n, str(n)) for n in range(20_000)], groups)


@kind
def dumps_of_wide_groups(folder: Path) -> None:
    """Write dumps of two ranks in eight groups with 200,000 members each."""
    for rank in (0, 1):
        write_dump(folder, rank, [operation(0)], {str(n): list(range(MANY_RANKS)) for n in range(8)})


@kind
def side_files_of_wide_groups(folder: Path) -> None:
    """Write files `groups_R.json` of two ranks, each with four groups of 200,000 members."""
    groups = {str(n): {"desc": "x", "ranks": list(range(MANY_RANKS))} for n in range(4)}
    for rank in (0, 1):
        write_dump(folder, rank, [operation(0)])
        side = {"schema": "workbench.groups/1", "rank": rank, "world_size": MANY_RANKS, "groups": groups}
        (folder / f"groups_{rank}.json").write_text(json.dumps(side))


@kind
def dumps_of_many_operations(folder: Path) -> None:
    """Write dumps of two ranks with 40,000 operations that never match."""
    for rank in (0, 1):
        names = [f"nccl:{('all_reduce', 'broadcast')[(n + rank) % 2]}" for n in range(40_000)]
        write_dump(folder, rank, [operation(n, profiling_name=name) for n, name in enumerate(names)])


@kind
def dumps_of_many_ranks(folder: Path) -> None:
    """Write dumps of 2,000 ranks, each in another operation."""
    for rank in range(2000):
        write_dump(folder, rank, [operation(rank % 50, input_sizes=[[rank]])])


@kind
def dumps_of_sends_to_all(folder: Path) -> None:
    """Write dumps of 64 ranks that each send to 500 others, of which none receives."""
    for rank in range(64):
        sends = (operation(n, profiling_name=f"nccl:send {rank}->{n}", is_p2p=True) for n in range(500))
        write_dump(folder, rank, sends, {"0": list(range(512))})


@kind
def dump_of_a_deep_stack(folder: Path) -> None:
    """Write a dump with one operation whose stack has 100,000 frames."""
    frames = [{"name": f"f{n}", "filename": f"/job/{n}.py", "line": n} for n in range(100_000)]
    write_dump(folder, 0, [operation(0, frames=frames)])


@kind
def dumps_in_a_long_ring(folder: Path) -> None:
    """Write dumps of 1,000 ranks, each of which waits for the next."""
    for rank in range(1000):
        groups = {str(n % 1000): [n % 1000, (n + 1) % 1000] for n in (rank - 1, rank)}
        write_dump(folder, rank, [operation(0, str(rank))], groups)


# Memory snapshots.


def write_snapshot(folder: Path, segments: list[Any], traces: list[Any]) -> None:
    snapshot = {"segments": segments, "device_traces": traces}
    (folder / "rank0_memory_snapshot.pickle").write_bytes(pickle.dumps(snapshot))


def segment(address: int, sizes: Iterable[int], **other: object) -> dict[str, object]:
    blocks = [{"size": size, "requested_size": size, "state": "active_allocated", "frames": []} for size in sizes]
    total = sum(int(str(block["size"])) for block in blocks)
    return {
        "address": address, "total_size": total, "allocated_size": total, "active_size": total, "device": 0,
        "stream": 0, "segment_type": "large", "blocks": blocks, **other,
    }  # fmt: skip


def allocation(number: int, **other: object) -> dict[str, object]:
    entry = {"action": "alloc", "addr": 512 * number, "size": 512, "stream": 0, "time_us": number, "frames": []}
    return entry | other


@kind
def snapshot_of_tiny_blocks(folder: Path) -> None:
    """Write a snapshot with a segment of 300,000 blocks."""
    write_snapshot(folder, [segment(0, [512] * 300_000)], [[]])


@kind
def snapshot_of_many_segments(folder: Path) -> None:
    """Write a snapshot of 100,000 segments, each of another stream."""
    write_snapshot(folder, [segment(n << 21, [512], stream=n) for n in range(100_000)], [[]])


@kind
def snapshot_of_many_devices(folder: Path) -> None:
    """Write a snapshot with traces of 5,000 devices."""
    write_snapshot(folder, [], [[allocation(1)] for _ in range(5000)])


@kind
def snapshot_that_frees_nothing(folder: Path) -> None:
    """Write a snapshot with a trace of 300,000 allocations that are all live at the end."""
    write_snapshot(folder, [], [[allocation(n) for n in range(300_000)]])


@kind
def snapshot_of_many_stacks(folder: Path) -> None:
    """Write a snapshot with 3,000 allocations, each with a different stack of 100 frames."""
    stacks = ([{"name": f"f{n}", "filename": f"{n}.py", "line": line} for line in range(100)] for n in range(3000))
    write_snapshot(folder, [], [[allocation(n, frames=frames) for n, frames in enumerate(stacks)]])


@kind
def snapshot_of_one_address(folder: Path) -> None:
    """Write a snapshot with 100,000 allocations, and 5,000 segments, at the same address."""
    write_snapshot(folder, [segment(0, [512]) for _ in range(5000)], [[allocation(0) for _ in range(100_000)]])


# Profiler traces.


def write_trace(folder: Path, events: Iterable[Json], rank: int = 0, **other: object) -> None:
    content = {"schemaVersion": 1, "traceEvents": list(events), **other}
    (folder / f"rank{rank}_trace.json").write_text(json.dumps(content, separators=(",", ":")))


def event(start: float, duration: float, category: str = "cpu_op", name: str = "a", **other: object) -> Json:
    return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration, "pid": 1, "tid": 1, **other}


@kind
def trace_of_many_tracks(folder: Path) -> None:
    """Write a trace of kernels on 60,000 streams of as many devices."""
    places = ({"pid": n, "tid": n, "args": {"stream": n, "device": n, "correlation": n}} for n in range(60_000))
    write_trace(folder, (event(n * 1e6, 1e9, "kernel", f"k{n}", **place) for n, place in enumerate(places)))


@kind
def trace_of_nested_calls(folder: Path) -> None:
    """Write a trace of 150,000 calls, each inside the one before."""
    write_trace(folder, (event(n, 400_000 - 2 * n) for n in range(150_000)))


@kind
def trace_of_crossing_spans(folder: Path) -> None:
    """Write a trace of 100,000 spans that all overlap without nesting."""
    write_trace(folder, (event(n, 200_000) for n in range(100_000)))


@kind
def trace_of_many_names(folder: Path) -> None:
    """Write a trace of 200,000 kernels, each with a different name."""
    write_trace(folder, (event(2 * n, 1, "kernel", f"kernel_{n}", args={"stream": 7}) for n in range(200_000)))


@kind
def trace_of_many_steps(folder: Path) -> None:
    """Write a trace of 50,000 steps."""
    write_trace(folder, (event(n, 1, "user_annotation", f"ProfilerStep#{n}") for n in range(50_000)))


@kind
def trace_of_one_correlation(folder: Path) -> None:
    """Write a trace of 50,000 launches and 50,000 kernels that all have the same correlation id."""
    linked = {"args": {"correlation": 1, "External id": 1, "stream": 7}}
    launches = (event(n, 1, "cuda_runtime", "cudaLaunchKernel", **linked) for n in range(50_000))
    write_trace(folder, [*launches, *(event(n, 2, "kernel", "k", **linked) for n in range(50_000))])


@kind
def traces_of_many_ranks(folder: Path) -> None:
    """Write traces of 48 ranks, whose 1,000 collectives never match."""
    for rank in range(48):
        named = (f"nccl:all_reduce_{(n * (rank + 1)) % 997}" for n in range(1000))
        events = (event(n * 10 + rank, 5, "kernel", name, args={"stream": 7}) for n, name in enumerate(named))
        write_trace(folder, events, rank, distributedInfo={"rank": rank, "world_size": 48})


# Step logs and other logs.


def write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("\n".join(lines) + "\n")


@kind
def steps_of_a_rank_each(folder: Path) -> None:
    """Write a step log of 20,000 lines, each of another rank and another step."""
    rows = ({"step": n, "rank": n, "loss": 1.0, "step_time": 0.1} for n in range(20_000))
    write_lines(folder / "metrics.jsonl", map(json.dumps, rows))


@kind
def steps_of_new_columns(folder: Path) -> None:
    """Write a step log of 20,000 lines, each with another column."""
    write_lines(folder / "metrics.jsonl", (json.dumps({"step": n, "loss": 1.0, f"k{n}": n}) for n in range(20_000)))


@kind
def steps_of_new_phases(folder: Path) -> None:
    """Write step logs of two ranks with 5,000 steps, each of which has ten phases of other names."""
    (folder / "steps").mkdir()
    for rank in (0, 1):
        rows = (
            {"step": n, "start_ns": n * 10**9, "dur_ns": 10**9, "phases": {f"p{n}_{m}": 10**7 for m in range(10)}}
            for n in range(5000)
        )
        write_lines(folder / "steps" / f"rank_{rank}.jsonl", map(json.dumps, rows))


@kind
def steps_of_a_wide_table(folder: Path) -> None:
    """Write a table of 1,500 columns and 3,000 rows."""
    header = ",".join(["step", "loss", *(f"c{n}" for n in range(1500))])
    write_lines(folder / "metrics.csv", [header, *(f"{n},1.0" + ",1" * 1500 for n in range(3000))])


@kind
def log_of_many_errors(folder: Path) -> None:
    """Write a console log of 50,000 tracebacks, each with another message."""
    trace = 'Traceback (most recent call last):\n  File "a.py", line {0}, in f{0}\nValueError: wrong {0}'
    write_lines(folder / "stderr.log", (trace.format(n) for n in range(50_000)))


@kind
def log_of_many_ranks(folder: Path) -> None:
    """Write a console log of 100,000 lines, each an error of another rank."""
    write_lines(folder / "stderr.log", (f"[rank{n}]: RuntimeError: CUDA out of memory on {n}" for n in range(100_000)))
