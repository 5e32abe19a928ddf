"""Estimates and category rules, compared with recordings of real runs of our trainer."""

import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers import memory, run
from ranks import start

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Fixture: snapshots of one process: unchanged, with activation checkpointing, and with half the batch."""
    folder = tmp_path_factory.mktemp("runs")
    flags = {"none": (), "full": ("--activation_checkpoint.mode", "full"), "half": ("--training.local_batch_size", "4")}
    return {name: trained(folder / name, *changed) for name, changed in flags.items()}


def trained(folder, *flags):
    arguments = ["--module", "llama3", "--config", "llama3_debugmodel", "--training.steps", "3"]
    arguments += ["--profiling.enable_memory_snapshot", "--profiling.profile_freq", "3"]
    start("trainer", *arguments, "--training.local_batch_size", "8", "--job.dump_folder", str(folder), *flags)
    [artefact] = run.discover(folder).of(run.Kind.SNAPSHOT)
    return artefact


@pytest.mark.parametrize(("what", "second"), [("activation_checkpointing", "full"), ("half_batch", "half")])
def test_a_second_run_frees_what_was_said(recorded, what, second):
    [before], [after] = (memory.analyze([recorded[name]]).data.devices for name in ("none", second))
    [estimate] = [one for one in before.savings if one.remedy == what]
    freed = before.peak_allocated_bytes - after.peak_allocated_bytes
    assert freed > 0
    assert estimate.frees_bytes == pytest.approx(freed, rel=0.02)


@pytest.mark.parametrize(("hidden", "right"), [("tags", 0.97), ("notes", 0.97), ("python", 0.9), ("late", 0.95)])
def test_the_rules_find_what_the_recorder_noted(recorded, hidden, right):
    spec = importlib.util.spec_from_file_location("benchmark", ROOT / "benchmarks" / "blocks" / "categories.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    for artefact in recorded.values():
        found, _ = benchmark.scores(artefact.path, benchmark.HIDING[hidden])
        assert found.trace() >= right * found.sum()


def test_the_rules_hold_for_another_kind_of_job(tmp_path):
    """The job has frozen weights with adapters, and its first recorded step has no Python frames."""
    command = [sys.executable, str(ROOT / "benchmarks" / "blocks" / "foreign_jobs.py"), "lora", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    [artefact] = run.discover(tmp_path).of(run.Kind.SNAPSHOT)
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "blocks" / "categories.py"))
    for hidden in ("notes", "python", "late"):
        found, at_peak = benchmark["scores"](artefact.path, benchmark["HIDING"][hidden])
        assert found.trace() >= 0.98 * found.sum()
        assert at_peak.trace() >= 0.98 * at_peak.sum()


HEAD = """
import sys
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from workbench.recorders.memory.recorder import MemoryRecorder

folder, pieces = sys.argv[1], int(sys.argv[2])
model = nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 4000, bias=False))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
memory = MemoryRecorder(folder, model, optimizer, freq=3)
def part(rows, labels):
    return functional.cross_entropy(rows.float(), labels, reduction="sum") / len(tokens)
for number in range(1, 4):
    tokens = torch.randint(50, (512,))
    with memory.step(number):
        with memory.phase("fwd"):
            logits = model(tokens).bfloat16()
            cut = zip(logits.chunk(pieces), tokens.chunk(pieces), strict=True)
            if pieces == 1:
                loss = part(logits, tokens)
            else:
                loss = sum(checkpoint(part, *both, use_reentrant=False) for both in cut)
        with memory.phase("bwd"):
            loss.backward()
        with memory.phase("optim"):
            optimizer.step()
            optimizer.zero_grad()
memory.close()
"""


def test_a_loss_in_pieces_frees_what_was_said_in_a_second_run(tmp_path):
    peaks = {}
    for pieces in (1, 8):
        folder = tmp_path / str(pieces) / "memory_snapshot"
        subprocess.run(
            [sys.executable, "-c", HEAD, str(folder), str(pieces)], check=True, cwd=ROOT, capture_output=True
        )
        report = memory.analyze(run.discover(folder).of(run.Kind.SNAPSHOT))
        peaks[pieces] = report.data.devices[0].peak_allocated_bytes
        if pieces == 1:
            [loss] = [one for one in report.data.devices[0].unusual if one.kind == "loss"]
            [finding] = [one for one in report.findings if one.id == "memory.loss"]
    assert "With 8 pieces the peak would be about" in finding.next
    assert loss.frees_bytes == pytest.approx(peaks[1] - peaks[8], rel=0.1)


def test_smaller_moments_are_foreseen(tmp_path):
    """The prediction is compared with a second run, whose Adam keeps its moments in bfloat16."""
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "optimizer_state.py"))
    was, real, told = benchmark["compared"](tmp_path, ("--training.seq_len", "64"), "bfloat16")
    assert real < 0.95 * was
    assert told == pytest.approx(real, rel=0.01)
