"""Step logs and heartbeats."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from workbench.recorders import RecorderOptions, Recorders
from workbench.recorders.hang.heartbeat import Heartbeat, read_beat
from workbench.recorders.timing.step_log import StepRecorder
from workbench.recorders.timing.step_table import MemoryUse, StepRecord
from workbench.recorders.timing.structured_log import export

ROOT = Path(__file__).parents[3]


def lines(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "steps/rank_0.jsonl").read_text().splitlines()]


def record(folder: Path, steps: int = 2) -> StepRecorder:
    recorder = StepRecorder(folder)
    for step in range(1, steps + 1):
        with recorder.step(step) as line:
            with recorder.phase("fwd"):
                time.sleep(0.02)
                with recorder.phase("gc"):
                    time.sleep(0.01)
            line.update(tokens=8, loss=float("nan") if step == 2 else 1.5)
            if step == 1:
                line.tag("first")
    return recorder


def test_a_line_holds_a_step(tmp_path: Path) -> None:
    record(tmp_path).close()
    header, first, second = lines(tmp_path)
    assert header["schema"] == "workbench.steps/1"
    assert (first["step"], first["tags"], first["tokens"], first["loss"]) == (1, ["first"], 8, 1.5)
    assert second["loss"] == "nan"
    assert second["grad_norm"] is None
    assert first.keys() == second.keys()


def test_phases_do_not_overlap_and_the_residual_is_the_rest(tmp_path: Path) -> None:
    record(tmp_path).close()
    for line in lines(tmp_path)[1:]:
        assert line["phases"]["gc"] >= 10_000_000
        assert 20_000_000 <= line["phases"]["fwd"] < line["dur_ns"] - line["phases"]["gc"]
        assert line["residual_ns"] == line["dur_ns"] - sum(line["phases"].values())
        assert line["residual_ns"] >= 0
        assert line["cpu_ns"]["fwd"] < line["phases"]["fwd"]


def spin(seconds: float) -> None:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_short_steps_share_the_measured_processor_time(tmp_path: Path) -> None:
    recorder = StepRecorder(tmp_path)
    before = time.process_time_ns()
    for step in range(1, 201):
        with recorder.step(step):
            with recorder.phase("fwd"):
                spin(0.0005)
            if step % 100 == 50:
                with recorder.phase("wait"):
                    time.sleep(0.05)
                with recorder.phase("work"):
                    spin(0.02)
    used_ns = time.process_time_ns() - before
    recorder.close()
    logged = lines(tmp_path)[1:]
    work = [line for line in logged if "work" in line["phases"]]
    assert len(logged) == 200
    assert all(line["cpu_ns"].keys() == line["phases"].keys() for line in logged)
    total_ns = sum(sum(line["cpu_ns"].values()) for line in logged)
    assert 0.5 * used_ns < total_ns < 1.5 * used_ns
    assert all(line["cpu_ns"]["wait"] < 0.02e9 for line in work)
    assert all(0.015e9 < line["cpu_ns"]["work"] < 0.04e9 for line in work)


def test_a_line_is_json_whatever_the_values_and_names(tmp_path: Path) -> None:
    recorder = StepRecorder(tmp_path)
    with recorder.step(1) as line:
        with recorder.phase('a "name"\n'):
            pass
        line.update(tokens=3, loss=float("-inf"), local_loss=1e-300, grad_norm=2)
        line.tag("\u00e9")
        line.seqs = {"0": 7, "default_pg": 2}
    recorder.close()
    written = lines(tmp_path)[1]
    assert list(written["phases"]) == list(written["cpu_ns"]) == ['a "name"\n']
    assert (written["loss"], written["local_loss"], written["grad_norm"]) == ("-inf", 1e-300, 2)
    assert (written["tokens"], written["tags"], written["seqs"]) == (3, ["\u00e9"], {"0": 7, "default_pg": 2})
    assert written.keys() == {*StepRecord.__annotations__, *MemoryUse.__annotations__}


def test_the_heartbeat_tells_the_place(tmp_path: Path) -> None:
    recorder = StepRecorder(tmp_path)
    path = tmp_path / "steps/heartbeat_0.bin"
    with recorder.step(3), recorder.phase("bwd"):
        beat = read_beat(path)
    assert beat
    assert (beat.step, beat.phase, beat.pid) == (3, "bwd", os.getpid())
    between = read_beat(path)
    assert between
    assert between.phase == "between"
    assert between.beats > beat.beats
    recorder.close()
    done = read_beat(path)
    assert done
    assert done.phase == "done"


def test_full_collections_are_a_phase_of_their_own(tmp_path: Path) -> None:
    import gc

    recorder = StepRecorder(tmp_path)
    with recorder.step(1), recorder.phase("optim"):
        gc.collect()
    recorder.close()
    assert lines(tmp_path)[1]["phases"]["gc"] > 0


def test_a_killed_process_loses_no_finished_step(tmp_path: Path) -> None:
    code = f"""
import os, signal
from workbench.recorders.timing.step_log import StepRecorder
recorder = StepRecorder({str(tmp_path)!r})
for step in (1, 2, 3):
    with recorder.step(step), recorder.phase("fwd"):
        if step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
"""
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [line.get("step") for line in lines(tmp_path)] == [None, 1, 2]
    beat = read_beat(tmp_path / "steps/heartbeat_0.bin")
    assert beat
    assert (beat.step, beat.phase) == (3, "fwd")


def test_the_collector_needs_no_torch() -> None:
    modules = "workbench.recorders, workbench.recorders.hang.collector, workbench.recorders.timing.structured_log"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_export_pairs_every_span(tmp_path: Path) -> None:
    record(tmp_path).close()
    record(tmp_path).close()  # a restart appends
    written = export(tmp_path)
    records = [json.loads(line) for line in written[0].read_text().splitlines()]
    assert [record["seq_id"] for record in records] == list(range(len(records)))
    opened = []
    for record_ in records[1:]:
        name, _, stage = record_["log_type_name"].rpartition("_")
        if record_["log_type"] == "event" and stage == "start":
            opened.append((name, record_["time_us"]))
        elif record_["log_type"] == "event":
            began = opened.pop()
            assert began[0] == name
            assert abs(record_["time_us"] - began[1] - record_["value"] * 1000) < 1000
    assert not opened
    assert {record_["value"] for record_ in records if record_["event_name"] == "local_valid_tokens"} == {8.0}


def test_a_step_takes_few_calls(tmp_path: Path) -> None:
    """What is always on may cost 1 % of a step; after a step's operations each call comes from slow memory."""
    recorders = Recorders(RecorderOptions(str(tmp_path)))
    calls: list[str] = []

    def train(step: int) -> None:
        with recorders.step(step):
            for name in ("data_wait", "fwd", "bwd", "grad_clip", "optim", "loss_sync"):
                with recorders.phase(name):
                    pass

    for step in range(1, 4):
        train(step)
    sys.setprofile(lambda _, event, __: calls.append(event) if event in ("call", "c_call") else None)
    try:
        train(4)
    finally:
        sys.setprofile(None)
    recorders.close()
    assert len(calls) < 260


def test_a_phase_that_an_exception_ends_stays_the_current_one(tmp_path: Path) -> None:
    recorders = Recorders(RecorderOptions(str(tmp_path)))
    with pytest.raises(ValueError, match="bad"), recorders.step(1), recorders.phase("bwd"):
        raise ValueError("bad")
    assert recorders.steps.current_phase == "bwd"
    beat = read_beat(tmp_path / "steps/heartbeat_0.bin")
    assert beat
    assert (beat.step, beat.phase) == (1, "bwd")


def test_the_first_heartbeat_of_a_step_is_there_at_once(tmp_path: Path) -> None:
    """A process that is killed as soon as its step begins was in this step, whatever the steps before have written."""
    heart, path = Heartbeat(tmp_path / "heartbeat_0.bin"), tmp_path / "heartbeat_0.bin"
    for step in range(1, 40):
        heart.beat(step, "begins")
        beat = read_beat(path)
        assert beat
        assert beat.step == step
        for _ in range(25):
            time.sleep(0.001)
            heart.beat(step, "fwd")
