"""Ranks that meet in collectives, simulated with and without a fault: the difference is the truth."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from analyzers import traces
from analyzers.columns import UnsavedColumns
from analyzers.run import Kind, discover
from analyzers.traces import digest, report
from workbench.present.tables.trace import trace_tables as tables

SIMULATED = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[4] / "benchmarks" / "traced_job.py")))
PARTS, STEPS, RANKS = SIMULATED.llama(layers=2), 3, 4
FAULTS = {
    "compute": SIMULATED.Fault(2, factor=1.3),
    "data": SIMULATED.Fault(1, host="dataloader", ns=7_000_000),
    "host": SIMULATED.Fault(3, host="aten::mul", ns=300_000),
}


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Fixture: read files in this process, because there are many small ones; other tests cover child processes."""

    def load(artefacts, *_):
        return [UnsavedColumns(*digest.read(paths)) for paths in artefacts]

    monkeypatch.setattr(report.store, "load_many", load)


def length(ranks):
    return max(end for rank in ranks for _, end, _ in rank.work) - SIMULATED.BEGIN_NS


def analysed(folder, *faults, offset=0):
    real = SIMULATED.job(folder, RANKS, STEPS, PARTS, faults=faults, offset=offset)
    return real, traces.analyze(discover(folder).of(Kind.TRACE))


@pytest.fixture(scope="module")
def healthy_ns(tmp_path_factory):
    return length(SIMULATED.job(tmp_path_factory.mktemp("healthy"), RANKS, STEPS, PARTS))


@pytest.mark.parametrize("offset", [0, -2_500_000_000], ids=["one clock", "clocks apart"])
@pytest.mark.parametrize("cause", FAULTS)
def test_the_planted_fault_is_named_with_its_cause_and_its_cost(tmp_path, healthy_ns, cause, offset):
    fault = FAULTS[cause]
    real, found = analysed(tmp_path, fault, offset=offset)
    assert (found.verdict.kind, found.verdict.ranks) == ("straggler", [fault.rank])
    [slow] = found.data.stragglers
    assert (slow.rank, slow.cause) == (fault.rank, cause)
    assert slow.saved_ns == length(real) - healthy_ns


def test_ranks_alike_accuse_nobody(tmp_path):
    _, found = analysed(tmp_path)
    assert found.data.stragglers == []
    assert {row.wait_ns for row in found.data.waits} == {0}


def test_waits_and_clocks_are_those_that_were_simulated(tmp_path):
    real, found = analysed(tmp_path, FAULTS["data"], offset=1_234_567_890)
    last = [max(arrivals) for arrivals in zip(*(rank.arrivals for rank in real), strict=True)]
    for rank, row in zip(real, found.data.waits, strict=True):
        assert row.wait_ns == sum(then - at for then, at in zip(last, rank.arrivals, strict=True))
    for rank, clock in zip(real, found.data.clocks, strict=True):
        assert clock.offset_ns == rank.offset
        assert clock.low_ns <= rank.offset <= clock.high_ns
    [group] = found.data.groups
    assert (group.ranks, group.last_rank, group.desc) == ([0, 1, 2, 3], 1, "default_pg")


@pytest.mark.parametrize("offset", [0, 3_000_000_000], ids=["one clock", "clocks apart"])
def test_the_culprit_is_found_behind_the_victims_of_another_group(tmp_path, offset):
    """Rank 3 delays rank 2 in their pair, which then comes late to its own column: it is not to blame for that."""
    mm, pair = SIMULATED.Op("aten::mm", "gemm", 200_000), SIMULATED.Collective("allreduce", 1000, 20_000, size=2)
    column = SIMULATED.Collective("_allgather_base", 1000, 30_000, size=2, stride=2)
    fault = SIMULATED.Fault(3, factor=1.5)
    parts = [mm, mm, pair, mm, pair, column] * 4
    real = SIMULATED.job(tmp_path / "slow", RANKS, STEPS, parts, faults=[fault], offset=offset)
    healthy = SIMULATED.job(tmp_path / "healthy", RANKS, STEPS, parts)
    found = traces.analyze(discover(tmp_path / "slow").of(Kind.TRACE)).data
    [slow] = found.stragglers
    assert (slow.rank, slow.cause) == (3, "compute")
    assert slow.saved_ns == length(real) - length(healthy)
    assert [clock.offset_ns for clock in found.clocks] == [rank.offset for rank in real]
    groups = {(group.desc, *group.ranks): group for group in found.groups}
    assert set(groups) == {("mesh_1", 0, 1), ("mesh_1", 2, 3), ("mesh_2", 0, 2), ("mesh_2", 1, 3)}
    assert (groups["mesh_1", 2, 3].last_rank, groups["mesh_2", 0, 2].last_rank) == (3, 2)
    axes = {axis.desc: axis for axis in found.axes}
    assert (axes["mesh_1"].worst_ranks, axes["mesh_1"].worst_last_rank) == ([2, 3], 3)
    for desc, axis in axes.items():
        mine = [group for group in found.groups if group.desc == desc]
        for name in ("collectives", "wait_ns", "transfer_ns"):
            assert getattr(axis, name) == sum(getattr(group, name) for group in mine)
    shown = {table.title: table.rows for table in tables(found)}
    assert [row[:2] for row in shown["Waiting by mesh axis"]] == [(axis.desc, "2") for axis in found.axes]
    assert {row[1] for row in shown["Collectives with the most waiting"]} <= {"mesh_1", "mesh_2"}


def test_recordings_that_begin_at_different_collectives_are_matched(tmp_path, maker):
    """There are no sequence numbers and no steps, and rank 1 misses the first three collectives."""
    files = []
    for rank in range(2):
        made = maker.Tracing(rank=rank, world=2)
        for i in range(3 * rank, 20):
            told = {"Collective name": "allreduce", "Process Group Name": "0", "In msg nelems": 100}
            late = 300_000 if rank == 0 else 0
            made.kernel("gemm", i * 1_000_000, 100_000, launch=(i * 1_000_000, 10))
            made.kernel("nccl", i * 1_000_000 + 200_000 + late, 500_000 - late, launch=(i * 1_000_000 + 50, 9), **told)
        files.append(maker.save(made.text(), f"rank{rank}_trace.json"))
    found = traces.analyze(files)
    assert [row.collectives for row in found.data.waits] == [16, 16]
    assert [row.wait_ns for row in found.data.waits] == [0, 16 * 300_000]


def test_clocks_that_collectives_contradict_are_told(tmp_path, maker):
    """Rank 1's clock jumps by 3 ms in the middle, so no offset fits all collectives."""
    files = []
    for rank in range(2):
        made = maker.Tracing(rank=rank, world=2)
        for i in range(10):
            at = i * 10_000_000 + (3_000_000 if rank and i > 5 else 0)
            told = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": i}
            made.kernel("nccl", at, 1_000_000, launch=(at, 9), **told)
        files.append(maker.save(made.text(), f"rank{rank}_trace.json"))
    assert any("the clock of rank 1" in lack for lack in traces.analyze(files).verdict.missing)
