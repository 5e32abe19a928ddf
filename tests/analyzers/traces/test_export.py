"""A merged file holds every event once, on a common clock, and says which rank was late."""

import json
import runpy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

from analyzers.run import Kind, discover
from analyzers.traces.export import export

SIMULATED = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "traced_job.py")))
LATE_NS = 5_000_000


def test_all_ranks_in_one_file_with_the_late_one_marked(tmp_path, maker):
    fault = SIMULATED.Fault(1, host="dataloader", ns=LATE_NS)
    real = SIMULATED.job(tmp_path, 2, 1, SIMULATED.llama(layers=1), faults=[fault], offset=7_000_000_000)
    target = tmp_path / "merged.json"
    count = export(discover(tmp_path).of(Kind.TRACE), target)
    events = json.loads(target.read_text())["traceEvents"]
    assert len(events) == count
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert sorted(processes.values()) == [
        "findings",
        "rank 0, device 0",
        "rank 0, host",
        "rank 1, device 0",
        "rank 1, host",
    ]
    for rank in real:
        kernels = [
            e for e in events if e.get("cat") == "kernel" and processes[e["pid"]] == f"rank {rank.rank}, device 0"
        ]
        begin = min(one.work[0][0] for one in real)
        first = min(e["ts"] for e in events if e.get("cat") == "kernel")
        found = sorted((round((e["ts"] - first) * 1000), round(e["dur"] * 1000)) for e in kernels)
        assert found == sorted((start - begin, end - start) for start, end, _ in rank.work)
    arrows = Counter(e["ph"] for e in events if e.get("cat") == "launch")
    assert arrows["s"] == arrows["f"] == sum(len(rank.work) for rank in real)
    worst = max((e for e in events if e.get("cat") == "finding"), key=lambda e: e["dur"])
    assert worst["name"] == "rank 1 is late in _allgather_base #0"
    assert worst["dur"] == LATE_NS / 1000


def test_a_window_and_a_limit_keep_the_longest(tmp_path, maker):
    made = maker.Tracing()
    for i in range(100):
        made.kernel("gemm", i * 1_000, 10 + i, launch=(i * 1_000, 1))
    artefact = maker.save(made.text())
    target = tmp_path / "window.json"
    export([artefact], target, window=(50_000, 60_000), limit=5)
    spans = [e for e in json.loads(target.read_text())["traceEvents"] if e["ph"] == "X"]
    assert [(e["ts"], e["dur"]) for e in spans] == [(i, (10 + i) / 1000) for i in range(55, 60)]
