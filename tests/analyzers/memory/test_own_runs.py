"""Estimates and category rules against what real runs of our own trainer recorded."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from analyzers import memory, run

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """One process's snapshot for two modes of activation checkpointing."""
    folder = tmp_path_factory.mktemp("runs")
    return {mode: trained(folder / mode, mode) for mode in ("none", "full")}


def trained(folder, mode):
    command = [sys.executable, "-m", "workbench", "launch", "--module", "llama3", "--config", "llama3_debugmodel"]
    command += ["--nproc", "1", "--training.steps", "3", "--profiling.enable_memory_snapshot"]
    command += ["--profiling.profile_freq", "3", "--activation_checkpoint.mode", mode, "--job.dump_folder", str(folder)]
    subprocess.run(command, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
    [artefact] = run.discover(folder).of(run.Kind.SNAPSHOT)
    return artefact


def test_checkpointing_frees_what_was_said_in_a_second_run(recorded):
    [without], [full] = (memory.analyze([recorded[mode]]).data.devices for mode in ("none", "full"))
    [estimate] = without.estimates
    freed = without.peak_allocated_bytes - full.peak_allocated_bytes
    assert freed > 0
    assert estimate.frees_bytes == pytest.approx(freed, rel=0.02)


@pytest.mark.parametrize(("hidden", "right"), [("tags", 0.97), ("notes", 0.97), ("python", 0.9), ("late", 0.95)])
def test_the_rules_find_what_the_recorder_noted(recorded, hidden, right):
    spec = importlib.util.spec_from_file_location("benchmark", ROOT / "benchmarks" / "categories.py")
    benchmark = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(benchmark)
    for artefact in recorded.values():
        found, _ = benchmark.scores(artefact.path, benchmark.HIDING[hidden])
        assert found.trace() >= right * found.sum()
