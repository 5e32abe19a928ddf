"""What the remedies are said to free."""

import subprocess
import sys
from pathlib import Path

import pytest

from analyzers import memory, run

MIB = 1 << 20


@pytest.fixture
def layered(maker):
    """Four layers that each keep three tensors of 2 MiB and one of 10, out of memory after the last."""
    made = maker.Recording()
    for layer in range(4):
        for size in (2, 2, 2, 10):
            made.alloc(size * MIB, category="activations", user_metadata=f"layers.{layer}.attention")
    made.alloc(3 * MIB, category="activations", user_metadata="output")
    made.oom(64 * MIB, MIB, [maker.frame("forward")])
    made.ours = {"exact": True, "made_up_segments": True}
    return maker.save(made.snapshot())


def test_checkpointing_keeps_the_inputs_and_one_layer(layered):
    report = memory.analyze([layered])
    [estimate] = report.data.devices[0].estimates
    assert (estimate.what, estimate.of_bytes) == ("activation_checkpointing", 67 * MIB)
    assert estimate.frees_bytes == (67 - 16 - 4 * 2) * MIB
    [oom] = [finding for finding in report.findings if finding.id == "memory.oom"]
    assert "about 43.0 MiB of 67.0 MiB usable (each of 4 layers keeps its input" in oom.next


def test_expandable_segments_free_whole_pages_only(maker):
    made = maker.Recording(segment_bytes=400 * MIB)
    held = [made.alloc(5 * MIB) for _ in range(80)]
    for address in held[::2]:
        made.free(address)
    report = memory.analyze([maker.save(made.snapshot())])
    [estimate] = report.data.devices[0].estimates
    free = [(k * 5, k * 5 + 5) for k in range(0, 80, 2)]  # in MiB, the segment begins on a page
    pages = sum(all(low <= at < high for at in (page, page + 1)) for low, high in free for page in range(0, 400, 2))
    assert (estimate.of_bytes, estimate.frees_bytes) == (200 * MIB, pages * 2 * MIB)
    [finding] = [f for f in report.findings if f.id == "memory.fragmentation"]
    assert "That would make about" in finding.next


def trained(folder, mode):
    """Device of a real run of one process with a mode of activation checkpointing."""
    command = [sys.executable, "-m", "workbench", "launch", "--module", "llama3", "--config", "llama3_debugmodel"]
    command += ["--nproc", "1", "--training.steps", "3", "--profiling.enable_memory_snapshot"]
    command += ["--profiling.profile_freq", "3", "--activation_checkpoint.mode", mode, "--job.dump_folder", str(folder)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[3], stdout=subprocess.DEVNULL)
    [device] = memory.analyze(run.discover(folder).of(run.Kind.SNAPSHOT)).data.devices
    return device


@pytest.mark.slow
def test_checkpointing_frees_what_was_said_in_a_second_real_run(tmp_path):
    without, full = trained(tmp_path / "none", "none"), trained(tmp_path / "full", "full")
    [estimate] = without.estimates
    freed = without.peak_allocated_bytes - full.peak_allocated_bytes
    assert freed > 0
    assert abs(estimate.frees_bytes - freed) <= 0.2 * freed
