"""The differences between two simulated jobs: the parts add up, and name the changed part."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from analyzers import compare
from analyzers.run import Kind, discover
from analyzers.traces import diff

SIMULATED = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "traced_job.py")))
PARTS, STEPS = SIMULATED.llama(layers=2), 3


@pytest.fixture
def before(tmp_path):
    SIMULATED.job(tmp_path / "a", 2, STEPS, PARTS)
    return discover(tmp_path / "a")


def after(folder, parts, *faults):
    SIMULATED.job(folder, 2, STEPS, parts, faults=faults)
    return discover(folder)


def compared(a, b):
    found = diff.compare(a.of(Kind.TRACE), b.of(Kind.TRACE))
    assert sum(part.change_ns for part in found.parts) == pytest.approx(found.step_b_ns - found.step_a_ns)
    return found, {(one.kind, one.name): one for one in found.changes}


def test_a_change_of_the_program_is_attributed(tmp_path, before):
    extra = SIMULATED.Op("aten::sort", "radix_sort", 900_000)
    parts = [part for part in PARTS if getattr(part, "name", "") != "aten::_fused_adamw_"]
    found, changes = compared(before, after(tmp_path / "b", [*parts, extra]))
    sort, optimizer = changes["kernel", "radix_sort"], changes["kernel", "multi_tensor_apply_kernel"]
    assert (sort.how, sort.a_ns, sort.b_count) == ("appeared", 0, 1)
    assert sort.b_ns == pytest.approx(900_500, abs=500)
    assert (optimizer.how, optimizer.b_ns, optimizer.a_count) == ("vanished", 0, 2)
    assert changes["operator", "aten::sort"].change_ns == sort.change_ns
    assert (found.a_steps, found.b_steps, found.ranks) == (2 * STEPS, 2 * STEPS, [0, 1])


def test_slower_kernels_are_told_from_more_of_them(tmp_path, before):
    _, slower = compared(before, after(tmp_path / "b", PARTS, *(SIMULATED.Fault(rank, factor=1.2) for rank in (0, 1))))
    gemm = next(one for (kind, name), one in slower.items() if kind == "kernel" and "gemm" in name)
    assert gemm.how == "slower"
    assert gemm.b_ns / gemm.a_ns == pytest.approx(1.2, rel=1e-4)
    assert not any(one.how in ("appeared", "vanished") for one in slower.values())


def test_compare_tells_it_of_runs(tmp_path, before):
    later = after(tmp_path / "b", PARTS, *(SIMULATED.Fault(rank, factor=1.3) for rank in (0, 1)))
    report = compare.analyze(before, later)
    [told] = [f for f in report.findings if f.id == "compare.trace"]
    assert told.severity == "warning"
    assert "most of it computing" in told.title
    assert any("gemm" in fact.text and "slower" in fact.text for fact in told.evidence)
    assert report.data.rows[0].what == "trace: traced step"
    assert compare.analyze(before, before).findings == []


def test_memory_of_two_recordings(maker):
    """In one recording a step allocates twice as much, and keeps what it allocates in addition."""

    def told(more):
        made = maker.Tracing()
        made.kernel("gemm", 0, 4000)
        for step in range(2):
            made.step(step, step * 2000, 1999)
            made.event("aten::mm", "cpu_op", step * 2000 + 100, 500)
            at, held = step * 2000 + 200, 1000 + step * more
            for after, size, name in ((100, 100, 1), (100 + more, more, 2), (more, -100, 1)):
                made.memory(at, size, 10 * step + name, allocated=held + after, reserved=5000 + more)
                at += 10
        return maker.accounts(made.text())

    found = diff.diff(told(20), told(300)).memory
    assert {(one.where, one.kind, one.name): (one.a_bytes, one.b_bytes, one.change_bytes) for one in found} == {
        ("cuda", "most allocated", ""): (1140, 1700, 560),
        ("cuda", "most reserved", ""): (5020, 5300, 280),
        ("cuda", "growth a step", ""): (20, 300, 280),
        ("cuda", "operator", "aten::mm"): (120, 400, 280),
    }
    assert not diff.diff(told(20), maker.accounts(maker.busy_day(1).text())).memory
