"""A failed allocation that the script catches is not the reason of what happens later."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from analyzers import incident, memory
from workbench.recorders.memory.recorder import MemoryRecorder

FAR_TOO_LARGE = 1 << 45
SCRIPT = """
import torch
from workbench.recorders import MemoryRecorder
from workbench.recorders.timing.step_log import StepRecorder
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
memory, steps = MemoryRecorder("outputs/memory_snapshot", model, optimizer, freq=100), StepRecorder("outputs")
for n in range(1, 13):
    try:
        with steps.step(n), memory.step(n):
            if n == 6:
                torch.empty(1 << 45)
            model(torch.randn(4, 64)).sum().backward()
            optimizer.step()
    except RuntimeError:
        print(f"step {n}: no memory, batch left out", flush=True)
    if n == 12:
        {"text": 1}["label"]
"""
HANGING = """
import datetime, time, torch, torch.distributed as dist
from workbench.recorders import MemoryRecorder
from workbench.recorders.timing.step_log import StepRecorder
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=15))
rank = dist.get_rank()
model = torch.nn.Linear(64, 64)
memory, steps = MemoryRecorder("outputs/memory_snapshot", model, freq=100), StepRecorder("outputs")
for n in range(1, 30):
    try:
        with steps.step(n), memory.step(n):
            if n == 6 and rank == 1:
                torch.empty(1 << 45)
            model(torch.randn(4, 64)).sum().backward()
    except RuntimeError:
        print(f"step {n}: no memory, batch left out", flush=True)
    if n == 12 and rank == 0:
        time.sleep(600)
    dist.all_reduce(torch.ones(4))
"""


def train(folder: Path, steps: int, *, failing: int = 0) -> None:
    model = nn.Linear(64, 64)
    recorder = MemoryRecorder(folder / "memory_snapshot", model, freq=2)
    for n in range(1, steps + 1):
        try:
            with recorder.step(n):
                if n == failing:
                    torch.empty(FAR_TOO_LARGE)
                model(torch.randn(4, 64)).sum().backward()
        except RuntimeError:
            continue
    recorder.close()


def test_a_request_after_which_the_rank_trained_on_is_caught(tmp_path: Path) -> None:
    train(tmp_path, 4, failing=3)
    report = memory.analyze(tmp_path)
    [caught] = [finding for finding in report.findings if finding.id == "memory.oom.caught"]
    assert report.verdict.kind == "healthy"
    assert "after step 4" in caught.why
    assert incident.analyze(tmp_path).verdict.kind == "healthy"


@pytest.mark.parametrize("earlier", [0, 2, 8])
def test_snapshots_of_an_earlier_attempt_show_no_survival(tmp_path: Path, earlier: int) -> None:
    train(tmp_path, earlier)
    train(tmp_path, 5, failing=5)
    report = memory.analyze(tmp_path)
    assert (report.verdict.kind, report.verdict.ranks) == ("oom", [0])
    assert not [finding for finding in report.findings if finding.id == "memory.oom.caught"]


@pytest.mark.slow
def test_a_later_exception_is_the_answer_although_no_later_snapshot_exists(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "workbench"]
    subprocess.run([*command, "launch", "--", "train.py"], cwd=tmp_path, check=False, capture_output=True)
    asked = subprocess.run([*command, "inspect", "outputs", "--json"], cwd=tmp_path, check=False, capture_output=True)
    verdict = json.loads(asked.stdout)["verdict"]
    assert "KeyError: 'label'" in verdict["sentence"]
    assert verdict["ranks"] == [0]
    assert "step 12" in verdict["sentence"]


@pytest.mark.slow
def test_a_later_hang_is_the_answer(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANGING)
    command = [sys.executable, "-m", "workbench"]
    subprocess.run(
        [*command, "launch", "--nproc", "2", "--", "train.py"], cwd=tmp_path, check=False, capture_output=True
    )
    asked = subprocess.run([*command, "inspect", "outputs", "--json"], cwd=tmp_path, check=False, capture_output=True)
    verdict = json.loads(asked.stdout)["verdict"]
    assert (verdict["class"], verdict["ranks"]) == ("host_stuck", [0])
