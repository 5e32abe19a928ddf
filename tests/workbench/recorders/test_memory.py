"""Record memory snapshots and traces of a single process on a CPU."""

import bisect
import copy
import io
import json
import pickle
import resource
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.profiler import profile

from analyzers.memory.model import MissingEvidence
from analyzers.memory.report import analyze as memory_report
from workbench.recorders import RecorderOptions, Recorders
from workbench.recorders.memory import cpu_history
from workbench.recorders.memory.limits import Room
from workbench.recorders.memory.recorder import MemoryRecorder, SnapshotPlan, insert_failure

ROOT = Path(__file__).parents[3]
WIDTH = 64


def train(options: RecorderOptions, steps: int) -> None:
    """Train a small model for some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters())
    recorders = Recorders(options, model=model, optimizer=optimizer)
    for step in range(1, steps + 1):
        with recorders.step(step):
            with recorders.phase("data_wait"):
                batch = torch.randn(32, WIDTH)
            with recorders.phase("fwd"):
                loss = model(batch).square().mean()
            with recorders.phase("bwd"):
                loss.backward()
            with recorders.phase("optim"):
                optimizer.step()
                optimizer.zero_grad()
    recorders.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Fixture: a run of four steps of a small model, with traces and snapshots."""
    folder = tmp_path_factory.mktemp("run")
    train(RecorderOptions(str(folder), enable_profiling=True, enable_memory_snapshot=True, profile_freq=4), steps=4)
    return folder


def test_a_failure_of_the_profiler_costs_the_history_and_not_the_job(tmp_path, monkeypatch, capsys):
    """PyTorch's profiler may raise an error when it stops, as version 2.13 does at times; here it does in step 2."""
    sessions = []

    class Failing(profile):
        def start(self):
            sessions.append(self)
            super().start()

        def stop(self):
            super().stop()
            if len(sessions) == 2:
                raise IndexError("Argument passed to at() was not in the map.")

    monkeypatch.setattr(cpu_history, "profile", Failing)
    train(RecorderOptions(str(tmp_path), enable_memory_snapshot=True, profile_freq=4), steps=4)
    assert "the memory of step 2 is not recorded: PyTorch's profiler failed (IndexError" in capsys.readouterr().err
    [device] = memory_report([tmp_path / "memory_snapshot/iteration_4/rank0_memory_snapshot.pickle"]).data.devices
    assert [step.step for step in device.steps] == [3, 4]
    assert device.consistent


@pytest.fixture(scope="module")
def snapshot(run: Path) -> dict:
    with (run / "memory_snapshot/iteration_4/rank0_memory_snapshot.pickle").open("rb") as file:
        return pickle.load(file)


def active(snapshot: dict) -> dict[int, int]:
    blocks = (block for segment in snapshot["segments"] for block in segment["blocks"])
    return {block["address"]: block["requested_size"] for block in blocks if block["state"] == "active_allocated"}


def peak(snapshot: dict) -> Counter:
    """Return the bytes by category at the peak, by a plain loop over the entries."""
    older, live, trace = snapshot["workbench"]["blocks"], {}, snapshot["device_traces"][0]
    born = {entry["addr"] for entry in trace if entry["action"] == "alloc"}
    # What other tests of this process left is none of the job's.
    older = {address: ("older" if block[0] == "unknown" else block[0],) for address, block in older.items()}
    for address, size in active(snapshot).items():
        if address in older:
            live[address] = (older[address][0], size)
    seen = set()
    for entry in trace:
        if entry["action"] == "free_completed" and entry["addr"] not in seen and entry["addr"] in older:
            live[entry["addr"]] = (older[entry["addr"]][0], entry["size"])
        if entry["action"] in ("alloc", "free_completed"):
            seen.add(entry["addr"])
    assert born
    best: Counter = Counter()
    for entry in trace:
        if entry["action"] == "alloc":
            live[entry["addr"]] = (entry["category"], entry["size"])
        elif entry["action"] == "free_completed":
            del live[entry["addr"]]
        now: Counter = Counter()
        for category, size in live.values():
            now[category] += size
        best = max(best, now, key=Counter.total)
    assert {address: size for address, (_, size) in live.items()} == active(snapshot)
    return best


def test_replay_ends_at_the_blocks_and_categories_are_exact(snapshot: dict) -> None:
    parameters = 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)
    found = peak(snapshot)
    assert found["parameters"] == parameters
    assert found["optimizer_state"] == 2 * parameters + 4 * 4
    assert found["gradients"] == parameters
    assert found["unknown"] == 0


def test_activations_and_inputs_are_noted(snapshot: dict) -> None:
    of = Counter()
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            of[entry["category"], entry["user_metadata"]] += 1
    assert of["inputs", "input 0"] == 4
    assert of["activations", "1"] >= 4  # what SiLU saves
    assert snapshot["workbench"]["lost_notes"] == 0
    assert snapshot["workbench"]["exact"]


def test_blocks_tile_their_segments(snapshot: dict) -> None:
    for segment in snapshot["segments"]:
        place = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == place
            place += block["size"]
        assert place == segment["address"] + segment["total_size"]


def test_frames_name_the_line(snapshot: dict) -> None:
    names = {
        frame["name"]
        for entry in snapshot["device_traces"][0]
        if entry["action"] == "alloc" and entry["category"] == "activations"
        for frame in entry["frames"]
        if frame["filename"].endswith("linear.py")
    }
    assert names == {"forward"}


def test_phases_are_annotated(snapshot: dict) -> None:
    names = Counter(mark["name"] for mark in snapshot["external_annotations"])
    assert names["step#4"] == names["step#3"] == 2
    assert names["fwd"] == names["Optimizer.step#AdamW.step"] == 8


def test_stock_viewer_opens_it(snapshot: dict) -> None:
    from torch.cuda import _memory_viz

    assert "alloc" in _memory_viz.segsum(snapshot)
    assert f"{len(snapshot['device_traces'][0])} entries" in _memory_viz.trace(snapshot)
    assert "html" in _memory_viz.trace_plot(snapshot)
    assert "html" in _memory_viz.segment_plot(snapshot)


def test_the_page_of_the_stock_viewer_does_not_break(run: Path, snapshot: dict) -> None:
    """PyTorch's viewer needs an unknown category if there are any, pickle protocol 4, and exact doubles."""
    [path] = (run / "memory_snapshot" / "iteration_4").glob("*.pickle")
    entries, segments = snapshot["device_traces"][0], snapshot["segments"]
    assert path.read_bytes()[:2] == b"\x80\x04"
    assert {"unknown", "gradients", "activations"} <= {entry["category"] for entry in entries if "category" in entry}
    numbers = [value for entry in entries for value in entry.values() if isinstance(value, int)]
    assert max(numbers) < 1 << 53
    ranges = sorted((segment["address"], segment["address"] + segment["total_size"]) for segment in segments)
    starts = [low for low, _ in ranges]
    for entry in entries:
        if entry["action"] in ("alloc", "free_requested", "free_completed"):
            low, high = ranges[bisect.bisect_right(starts, entry["addr"]) - 1]
            assert low <= entry["addr"] < high


def test_the_trace_holds_the_active_step(run: Path) -> None:
    assert [path.name for path in (run / "profile_traces").iterdir()] == ["iteration_4"]
    trace = json.loads((run / "profile_traces/iteration_4/rank0_trace.json").read_text())
    names = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "user_annotation"]
    assert names.count("ProfilerStep#4") == names.count("fwd") == 1
    assert any(event.get("cat") == "cpu_op" for event in trace["traceEvents"])


def test_the_hooks_of_the_recorder_are_not_in_the_trace(run: Path) -> None:
    """A note makes a dozen calls, which were most of a session, and each costs more to read than to make."""
    trace = json.loads((run / "profile_traces/iteration_4/rank0_trace.json").read_text())
    calls = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "python_function"]
    assert any("torch/nn/modules/module.py" in name for name in calls)
    assert any("tensor_hooks.py" in name for name in calls)
    assert not [name for name in calls if ": note_tensor" in name or ": local_tensor" in name or "data_ptr" in name]


def test_traces_alone_have_no_stacks(tmp_path: Path) -> None:
    model = nn.Linear(4, 4)
    recorders = Recorders(RecorderOptions(str(tmp_path), enable_profiling=True, profile_freq=4), model=model)
    for step in range(1, 10):
        with recorders.step(step), recorders.phase("fwd"):
            model(torch.ones(1, 4))
    recorders.close()
    assert {path.name for path in (tmp_path / "profile_traces").iterdir()} == {"iteration_4", "iteration_8"}
    trace = json.loads((tmp_path / "profile_traces/iteration_8/rank0_trace.json").read_text())
    kinds = Counter(event.get("cat") for event in trace["traceEvents"])
    assert kinds["python_function"] == 0
    assert [e["name"] for e in trace["traceEvents"] if e["name"].startswith("ProfilerStep#")] == ["ProfilerStep#8"]
    tags = [json.loads(line).get("tags") for line in (tmp_path / "steps/rank_0.jsonl").read_text().splitlines()]
    assert [step for step, tag in enumerate(tags) if tag == ["profile"]] == [4, 8]


OUT_OF_MEMORY = """
import sys, torch
from torch import nn
from trainer.faults import Faults
from workbench.recorders.memory.limits import Room
from workbench.recorders.memory.recorder import MemoryRecorder
from types import SimpleNamespace
torch.set_num_threads(1)
model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
memory = MemoryRecorder(sys.argv[1], model, freq=10)
faults = Faults(SimpleNamespace(name="oom", rank=-1, step=3, every=1, seconds=0.0), model=model, timeout_s=1)
try:
    for step in range(1, 6):
        with memory.step(step):
            faults.before_step(step)
            with memory.phase("fwd"):
                model(faults.on_batch(step, torch.ones(512, 512)))
except RuntimeError as error:
    memory.failed(error)
    raise
"""


@pytest.mark.parametrize(
    ("plan", "recorded"),
    [
        (SnapshotPlan(10, 3), [8, 9, 10, 18, 19, 20]),
        (SnapshotPlan(4, 1), [4, 8, 12, 16, 20]),
        (SnapshotPlan(100, 5, last_step=12), [8, 9, 10, 11, 12]),
        (SnapshotPlan(2, 5), list(range(1, 21))),
    ],
)
def test_a_plan_covers_the_steps_before_a_snapshot(plan: SnapshotPlan, recorded: list[int]) -> None:
    assert [step for step in range(1, 21) if plan.covers(step)] == recorded


def test_only_the_steps_before_a_snapshot_are_recorded(tmp_path: Path) -> None:
    options = RecorderOptions(
        str(tmp_path), enable_memory_snapshot=True, profile_freq=4, memory_snapshot_window=2, memory_until=9
    )
    train(options, steps=8)
    with (tmp_path / "memory_snapshot/iteration_8/rank0_memory_snapshot.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    marks = {mark["name"] for mark in snapshot["external_annotations"] if mark["name"].startswith("step#")}
    assert marks == {"step#7", "step#8"}
    parameters = 4 * (2 * 4 * WIDTH * WIDTH + 5 * WIDTH)
    found = peak(snapshot)
    assert (found["parameters"], found["optimizer_state"]) == (parameters, 2 * parameters + 4 * 4)
    assert found["unknown"] == 0
    assert found["older"] >= 4  # the loss of the step before, which the script still holds
    lines = [json.loads(line) for line in (tmp_path / "steps/rank_0.jsonl").read_text().splitlines()[1:]]
    assert [line["step"] for line in lines if "profile" in line["tags"]] == [3, 4, 7, 8]


def test_a_failure_in_a_step_that_is_not_recorded_leaves_the_state_alone(tmp_path: Path) -> None:
    model = nn.Linear(WIDTH, WIDTH)
    memory = MemoryRecorder(tmp_path, model, freq=4, window=1)
    for step in range(1, 5):
        with memory.step(step):
            kept = model(torch.ones(WIDTH, WIDTH))
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
    with pytest.raises(RuntimeError), memory.step(5):
        raise error
    memory.failed(error)
    assert kept.shape
    with (tmp_path / "iteration_4_exit/rank0_memory_snapshot.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    assert [entry["action"] for entry in snapshot["device_traces"][0]] == ["snapshot", "oom"]
    assert {mark["name"] for mark in snapshot["external_annotations"]} == {"step#5"}
    assert sorted(active(snapshot).values()) == [4 * WIDTH, 4 * WIDTH * WIDTH]
    [device] = memory_report(tmp_path / "iteration_4_exit").data.devices
    assert device.step == 4
    assert device.missing == [MissingEvidence.FAILING_STEP]


def test_a_failure_that_leaves_a_step_is_recorded_once(tmp_path: Path) -> None:
    """The script need not call `failed`, and may: another call changes nothing. The soft limit stays for a retry."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = 1 << 45
    model = nn.Linear(WIDTH, WIDTH)
    memory = MemoryRecorder(tmp_path, model, freq=4)
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        with pytest.raises(RuntimeError, match="can't allocate"), memory.step(1):
            raise error
        assert resource.getrlimit(resource.RLIMIT_DATA) == (limit, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    path = tmp_path / "iteration_0_exit/rank0_memory_snapshot.pickle"
    written = path.read_bytes()
    assert [entry["action"] for entry in pickle.loads(written)["device_traces"][0]].count("oom") == 1
    memory.failed(error)
    assert path.read_bytes() == written
    with memory.step(2):
        model(torch.ones(WIDTH, WIDTH))
    memory.close()


def test_other_errors_in_a_step_and_a_snapshot_that_cannot_be_written_reach_the_script(tmp_path: Path) -> None:
    memory = MemoryRecorder(tmp_path / "file", nn.Linear(WIDTH, WIDTH), freq=4)
    with pytest.raises(ValueError, match="bad batch"), memory.step(1):
        raise ValueError("bad batch")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("a file where the folder should be")
    with pytest.raises(MemoryError), memory.step(2):
        raise MemoryError
    assert (tmp_path / "file").is_file()
    memory.close()


def test_every_step_of_a_process_with_a_memory_limit_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.recorders.memory.recorder.memory_room", lambda: Room(1 << 40, 1 << 39))
    model = nn.Linear(WIDTH, WIDTH)
    memory = MemoryRecorder(tmp_path, model, freq=100, window=2)
    for step in range(1, 6):
        with memory.step(step):
            model(torch.ones(WIDTH, WIDTH))
    memory.write()
    with (tmp_path / "iteration_5/rank0_memory_snapshot.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    marks = {mark["name"] for mark in snapshot["external_annotations"]}
    assert marks == {"step#3", "step#4", "step#5"}  # the window, and the step in which memory might have run out


def test_running_out_of_memory_leaves_a_snapshot(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", OUT_OF_MEMORY, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert "can't allocate memory" in ended.stderr
    with (tmp_path / "iteration_2_exit/rank0_memory_snapshot.pickle").open("rb") as file:
        snapshot = pickle.load(file)
    (failure,) = (entry for entry in snapshot["device_traces"][0] if entry["action"] == "oom")
    assert failure["size"] == 512 * 512 * 64 * 4
    assert failure["device_free"] < failure["size"]
    assert any(frame["name"] == "forward" for frame in failure["frames"])
    assert snapshot["workbench"]["limit_bytes"] > 192 << 20
    assert snapshot["workbench"]["limit_name"] == "RLIMIT_DATA"
    assert snapshot["workbench"]["phase"] == "fwd"
    assert peak(snapshot)["inputs"] >= failure["size"]


@pytest.mark.parametrize(("end", "status"), [("raise ValueError", 1), ("raise SystemExit(7)", 7)])
def test_a_script_that_ends_within_a_recorded_step_keeps_its_exit_status(tmp_path: Path, end: str, status: int) -> None:
    """PyTorch stopped the session after the end of the interpreter, and the script ended by a segmentation fault."""
    script = f"""
import sys, torch
from workbench.recorders.memory.recorder import MemoryRecorder
model = torch.nn.Linear(8, 8)
recorder = MemoryRecorder(sys.argv[1], model, freq=1)
for step in range(1, 3):
    with recorder.step(step):
        model(torch.ones(4, 8))
        if step == 2:
            {end}
"""
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == status


def test_what_unwinding_freed_was_not_left_when_the_allocation_failed() -> None:
    trace = [
        {"action": action, "size": 24, "time_us": time}
        for time, action in enumerate(["alloc", "alloc", "free_requested", "free_completed", "free_completed"])
    ]
    insert_failure(trace, {"action": "oom", "size": 24, "device_free": 60, "time_us": 9})
    assert [entry["action"] for entry in trace].index("oom") == 3
    assert (trace[3]["device_free"], trace[3]["time_us"]) == (12, 3)


def test_only_what_the_optimizer_allocates_has_its_stack(snapshot: dict) -> None:
    marks = [n["time_us"] for n in snapshot["external_annotations"] if n["name"].startswith("Optimizer.step")]
    spans = list(zip(marks[::2], marks[1::2], strict=True))
    inside = [
        any(first <= entry["time_us"] <= last for first, last in spans)
        for entry in snapshot["device_traces"][0]
        if entry["action"] == "alloc" and any("torch/optim/" in frame["filename"] for frame in entry["frames"])
    ]
    assert inside
    assert all(inside)


@pytest.mark.parametrize("during", [False, True], ids=["between steps", "in a recorded step"])
def test_a_recorded_model_is_pickled_and_copied_as_without(tmp_path: Path, during: bool) -> None:
    """What `torch.save(model)` writes needs nothing of ours where it is loaded; between steps it can be compiled."""
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    memory = MemoryRecorder(tmp_path, model, freq=1)
    saved = io.BytesIO()
    with memory.step(1) if during else nullcontext():
        torch.save(model, saved)
        twin = copy.deepcopy(model)
        pickle.loads(pickle.dumps(model))(torch.ones(2, 4))
    assert b"workbench" not in saved.getvalue()
    assert torch.equal(twin(torch.ones(2, 4)), model(torch.ones(2, 4)))
    if not during:
        torch.compile(model, backend="eager", fullgraph=True)(torch.ones(2, 4))
    memory.close()
