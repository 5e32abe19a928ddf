"""Test the trainer's table of phases: against the step log, with simulated device events, and its cost."""

import json
import re
import statistics
import time
from types import SimpleNamespace

import pytest
import torch

from workbench.recorders.timing.step_log import StepRecorder
from workbench.recorders.timing.step_table import StepTable

ROW = re.compile(r"^  (\w+) +([\d.]+) +([\d.]+) +([\d.]+) +([\d.]+)% +([\d.]+|-) +([\d.]+|-)$", re.MULTILINE)


def parsed(text):
    return {
        found[1]: [float(cell) if cell != "-" else None for cell in found.groups()[1:]] for found in ROW.finditer(text)
    }


@pytest.mark.slow
def test_a_run_prints_what_its_log_says(run_once):
    done = run_once(
        "timing",
        2,
        "--debug.timing_breakdown",
        "--debug.timing_breakdown_freq",
        "4",
        "--training.local_batch_size",
        "2",
    )
    tables = done.output.split("Timing breakdown of ")[1:]
    assert [re.match(r"\d+ steps from \d+ to \d+", table)[0] for table in tables] == [
        "3 steps from 2 to 4", "2 steps from 5 to 6"
    ]  # fmt: skip
    steps = [line for line in done.lines() if 2 <= line["step"] <= 4]
    rows = parsed(tables[0])
    whole = statistics.fmean(line["dur_ns"] for line in steps)
    assert {"data_wait", "h2d", "fwd", "bwd", "grad_clip", "optim", "loss_sync", "other", "step"} <= set(rows)
    for name in ("fwd", "bwd", "optim"):
        wall = [line["phases"][name] / 1e6 for line in steps]
        cpu = statistics.fmean(line["cpu_ns"][name] for line in steps) / 1e6
        share = 100 * statistics.fmean(wall) * 1e6 / whole
        expected = [statistics.median(wall), statistics.fmean(wall), max(wall), share, cpu]
        assert rows[name][:5] == pytest.approx(expected, abs=0.06)
    parts = sum(row[1] for name, row in rows.items() if name != "step")
    assert parts == pytest.approx(rows["step"][1], abs=0.02)
    assert sum(row[3] for name, row in rows.items() if name != "step") == pytest.approx(100, abs=0.6)


class Event:
    """A simulated device event, which is complete when `now` reaches its time; waiting for it is an error."""

    now = 0.0
    made = 0

    def __init__(self, *, enable_timing):
        assert enable_timing

    def record(self):
        Event.made += 1
        self.at = Event.made * 10.0

    def query(self):
        return self.at <= Event.now

    def elapsed_time(self, end):
        assert self.query()
        assert end.query()
        return end.at - self.at

    def synchronize(self):
        raise AssertionError("the step must not wait for the device")


class Device:
    """The functions of torch.cuda that the device clock uses; none of them waits."""

    Event = Event

    @staticmethod
    def memory_stats():
        return {"allocated_bytes.all.peak": 5, "reserved_bytes.all.peak": 6}

    @staticmethod
    def reset_peak_memory_stats():
        pass

    @staticmethod
    def current_device():
        return 0

    @staticmethod
    def get_device_properties(_device):
        return SimpleNamespace(total_memory=100)

    @staticmethod
    def get_per_process_memory_fraction():
        return 1.0


def test_device_times_come_from_events_that_nobody_waits_for(tmp_path, monkeypatch):
    monkeypatch.setattr(Event, "made", 0)
    monkeypatch.setattr(Event, "now", 0.0)
    monkeypatch.setattr(torch, "cuda", Device)
    recorder = StepRecorder(tmp_path, device="cuda", timing=StepTable())
    for step in range(1, 5):
        with recorder.step(step):
            for phase in ("fwd", "bwd"):
                with recorder.phase(phase):
                    pass
        Event.now += 35.0  # the device is always behind
    written = (tmp_path / "steps/rank_0.jsonl").read_text().splitlines()
    assert 1 < len(written) < 5  # the header and the steps that the device has passed
    Event.now = 1e9
    rows = parsed(recorder.breakdown(last=True))
    assert [rows[name][5] for name in ("fwd", "bwd", "step")] == [10.0, 10.0, None]
    recorder.close()
    lines = [json.loads(line) for line in (tmp_path / "steps/rank_0.jsonl").read_text().splitlines()[1:]]
    assert [line["device_ns"] for line in lines] == [{"fwd": 10_000_000, "bwd": 10_000_000}] * 4


def test_what_it_costs():
    """To add a step to the table takes less than a hundredth of a per cent of a step of 100 ms."""
    line = {
        "step": 1, "dur_ns": 10**8, "residual_ns": 10**6, "tags": [],
        **{key: dict.fromkeys(("fwd", "bwd", "optim"), 10**7) for key in ("phases", "cpu_ns", "device_ns")},
    }  # fmt: skip
    timing, count = StepTable(), 20_000
    began = time.process_time()
    for _ in range(count):
        timing.add(line)
    assert (time.process_time() - began) / count < 10e-6


def test_without_a_usual_step():
    timing = StepTable()
    timing.add({"tags": ["first"]})
    assert timing.table().startswith("Timing breakdown: no step")
