"""Findings about the memory in a trace, and cases without findings."""

import json
import shutil
from pathlib import Path

import pytest

from analyzers import run, traces
from workbench.present.tables.trace import rank_tables

RECORDED = Path(__file__).parents[3] / "fixtures" / "traces" / "allocating" / "rank0_trace.json.gz"
MIB, GIB = 1 << 20, 1 << 30


@pytest.fixture
def told(maker):
    """Fixture: a function that returns the findings about memory in a trace, by id."""

    def told(made, total=None):
        document = json.loads(made.text())
        document["deviceProperties"] = [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": total}]
        report = traces.analyze([maker.save(json.dumps(document).encode())])
        return {one.id: one for one in report.findings if one.id.startswith("trace.memory")}

    return told


def steps_of(made, ends, *, start=GIB, reserved=0):
    """Add steps of 1 ms; `ends` has the bytes that are still allocated at the end of each."""
    made.event("aten::empty", "cpu_op", 0, len(ends) * 1_000_000)
    made.kernel("gemm", 0, len(ends) * 1_000_000)
    held = start
    for number, end in enumerate(ends):
        at = number * 1_000_000
        made.step(number, at, 999_000)
        made.memory(at + 10, GIB, number * 10 + 1, allocated=held + GIB, reserved=reserved)
        made.memory(at + 20, end - held, number * 10 + 2, allocated=GIB + end, reserved=reserved)
        made.memory(at + 30, -GIB, number * 10 + 1, allocated=end, reserved=reserved)
        held = end
    return made


def test_growth_in_each_step_is_told(maker, told):
    ends = [GIB + n * 50 * MIB for n in (1, 2, 3, 4)]
    found = told(steps_of(maker.Tracing(), ends), total=3 * GIB)
    assert list(found) == ["trace.memory_grows"]
    grows = found["trace.memory_grows"]
    assert (grows.severity, "by 50.0 MiB" in grows.title) == ("warning", True)
    assert "full in 16 steps" in grows.why  # 3 GiB less the peak of 2 GiB and 200 MiB
    assert any("4 allocations, 200.0 MiB, in aten::empty" in one.text for one in grows.evidence)


@pytest.mark.parametrize(
    "ends",
    [
        [GIB + 50 * MIB, GIB + 100 * MIB],
        [GIB + 50 * MIB, GIB + 40 * MIB, GIB + 60 * MIB, GIB + 80 * MIB],
        [GIB + 900, GIB + 1800, GIB + 2700, GIB + 3600],
        [GIB + 500 * MIB] + [GIB + 500 * MIB + n * 512 for n in range(1, 4)],
    ],
    ids=["too few steps", "once less", "next to nothing", "only at first"],
)
def test_what_does_not_grow_is_not_told(maker, told, ends):
    assert not told(steps_of(maker.Tracing(), ends), total=80 * GIB)


def test_uneven_growth_over_few_steps_is_no_warning(maker, told):
    ends = [GIB + 2 * MIB, GIB + 60 * MIB, GIB + 70 * MIB]
    assert told(steps_of(maker.Tracing(), ends))["trace.memory_grows"].severity == "info"


@pytest.mark.parametrize(("total", "severity"), [(None, "info"), (80 * GIB, "info"), (30 * GIB, "warning")])
def test_memory_that_is_reserved_in_vain(maker, told, total, severity):
    found = told(steps_of(maker.Tracing(), [GIB] * 3, reserved=8 * GIB), total)
    assert list(found) == ["trace.memory_unused"]
    unused = found["trace.memory_unused"]
    assert (unused.severity, "(75 % of it)" in unused.title) == (severity, True)
    assert any("2.0 GiB in step 0, 10.0 ns after its start" in one.text for one in unused.evidence)


@pytest.mark.parametrize(
    ("unused", "total", "reported"),
    [(74 * MIB, None, False), (74 * MIB, 192 * GIB, False), (GIB, 192 * GIB, False), (GIB, 80 * GIB, True)],
)
def test_unused_memory_is_reported_only_if_there_is_enough_to_use(maker, told, unused, total, reported):
    made = maker.Tracing()
    made.event("aten::empty", "cpu_op", 0, 1000)
    made.kernel("gemm", 0, 1000)
    made.memory(10, MIB, 1, allocated=MIB, reserved=MIB + unused)
    assert ("trace.memory_unused" in told(made, total)) == reported


def test_a_device_that_is_nearly_full(maker, told):
    found = told(steps_of(maker.Tracing(), [GIB] * 3, reserved=int(2.1 * GIB)), total=int(2.2 * GIB))
    assert list(found) == ["trace.memory_near_limit"]
    assert "95 % of its memory" in found["trace.memory_near_limit"].title


def test_a_recording_that_grows_is_told_whole(tmp_path):
    shutil.copy(RECORDED, tmp_path)
    report = traces.analyze(run.discover(tmp_path).of(run.Kind.TRACE))
    assert (report.verdict.kind, report.verdict.ranks) == ("memory_grows", [0])
    assert any("remember" in one.text for one in report.lead().evidence)
    tables = {one.title: one for one in rank_tables(report.data.ranks[0]) if one.rows}
    grown = tables["Memory by step, cpu, rank 0"]
    assert [row[grown.columns.index("growth")] for row in grown.rows] == ["64.0 KiB"] * 3
    kept = tables["Memory never freed during the recording, cpu, rank 0"].rows
    assert [row[:2] for row in kept] == [("192.0 KiB", "3")]
