"""The rank that the others wait for, in simulated traces."""

from pathlib import Path

import pytest

from analyzers import traces
from analyzers.run import Kind, discover
from analyzers.traces import views
from analyzers.traces.columns import HOST_PHASES
from analyzers.traces.stragglers import REASONS, Cause
from workbench.present.tables.trace import time_by_rank
from workbench.web.components.rank_charts import bar_names

MS = 1_000_000


def job(maker, backend, *, late=(20 * MS,) * 4, work=50 * MS, sequence=True, computes=True):
    """Write traces of ranks that meet in a collective per step; rank `slow` arrives late by `late` ns in each."""
    files, ranks, slow = [], 3, 2
    for rank in range(ranks):
        made, clock = maker.Tracing(rank=rank, world=ranks, backend=backend), rank * 3 * MS
        for number, more in enumerate(late):
            begin, own = clock, work + (more if rank == slow and computes else 0)
            pause = more if rank == slow and not computes else 0
            meet = begin + work + more
            arrive = begin + own + pause
            if backend == "gloo":
                made.event("aten::mm", "cpu_op", begin, own)
                made.event("gloo:all_reduce", "user_annotation", arrive, meet - arrive + MS, tid=9)
            else:
                noted = {"Collective name": "allreduce", "Process Group Name": "0"} | (
                    {"Seq": number} if sequence else {}
                )
                made.kernel("gemm", begin, own, launch=(begin, 100))
                made.kernel("ncclDevKernel", arrive, meet - arrive + MS, launch=(begin + 200, 100), stream=20, **noted)
            clock = meet + 2 * MS
            made.step(number, begin, clock - begin)
        files.append(maker.save(made.text(), f"rank{rank}_trace.json"))
    return files


@pytest.mark.parametrize(("backend", "sequence"), [("gloo", True), ("nccl", True), ("nccl", False)])
def test_the_late_rank_is_named(maker, backend, sequence):
    report = traces.analyze(job(maker, backend, sequence=sequence))
    assert (report.verdict.kind, report.verdict.ranks) == ("straggler", [2])
    assert [(row.wait_ns, row.last_arrivals) for row in report.data.waits] == [(80 * MS, 0), (80 * MS, 0), (0, 4)]
    [finding] = [f for f in report.findings if f.id == "trace.straggler"]
    assert "outside of collectives it needs 80.0 ms more" in finding.title
    assert "The other ranks wait for it in collectives in 4 of 4 steps" in finding.why
    assert finding.title.endswith("than the median of the other ranks, mostly for compute")
    assert (
        "over the whole profile: +80.0 ms outside of collectives, of which compute +80.0 ms" in finding.evidence[0].text
    )
    assert [Path(fact.source).name for fact in finding.evidence] == [f"rank{rank}_trace.json" for rank in (2, 2, 0, 1)]
    [slow] = report.data.stragglers
    assert (slow.cause, slow.excess_ns, slow.saved_ns) == ("compute", 80 * MS, 80 * MS)
    assert report.verdict.confidence >= 0.9


def test_a_rank_late_for_another_reason_is_told_apart(maker):
    report = traces.analyze(job(maker, "gloo", computes=False))
    [finding] = [f for f in report.findings if f.id == "trace.straggler"]
    [slow] = report.data.stragglers
    assert slow.cause is Cause.HOST
    assert slow.detail in finding.why


def test_each_phase_of_the_host_is_a_cause_with_a_reason():
    assert {str(cause) for cause in Cause if cause.is_phase} == set(HOST_PHASES)
    assert set(REASONS) == set(Cause) - {Cause.COMPUTE}


@pytest.mark.parametrize(
    ("late", "named"),
    [
        ([0, 0, 250 * MS, 250 * MS, 0, 0, 0, 0], False),
        ([250 * MS, 250 * MS, 0, 250 * MS, 250 * MS, 0, 250 * MS, 0], True),
        ([250 * MS, 250 * MS], True),
    ],
    ids=["some of many steps", "most of many steps", "few steps"],
)
def test_a_rank_without_a_core_now_and_then_is_no_straggler(maker, late, named):
    found = traces.analyze(job(maker, "gloo", late=late)).data.stragglers
    assert [(slow.rank, slow.late_steps, slow.steps) for slow in found] == (
        [(2, sum(map(bool, late)), len(late))] if named else []
    )


@pytest.mark.parametrize(("late", "named"), [(4 * MS, False), (6 * MS, True)])
def test_a_turn_of_another_process_on_its_core_makes_no_rank_late(maker, late, named):
    found = traces.analyze(job(maker, "gloo", late=[late] * 8, work=10 * MS)).data.stragglers
    assert bool(found) == named


def test_ranks_in_step_have_no_straggler(maker):
    report = traces.analyze(job(maker, "nccl", late=[0] * 4))
    assert "trace.straggler" not in {finding.id for finding in report.findings}
    assert report.verdict.missing == []


def test_waits_of_several_recordings_add_up(maker):
    files = job(maker, "gloo")
    later = [maker.save(file.path.read_bytes(), file.path.name, "iteration_20") for file in files]
    assert [row.wait_ns for row in traces.analyze(files + later).data.waits] == [160 * MS, 160 * MS, 0]


def test_one_rank_alone_has_nobody_to_wait_for(maker):
    report = traces.analyze(job(maker, "gloo")[:1])
    assert report.data.waits == []
    assert "the traces of the other ranks" in report.verdict.missing


def test_tables_for_faces(maker):
    report = traces.analyze(job(maker, "nccl"))
    parts = views.breakdown(report)
    assert (parts[list(views.PARTS)].sum(axis=1) == parts["span_ns"]).all()
    assert set(views.kernels(report)["name"]) == {"gemm", "ncclDevKernel"}
    assert views.steps(report).groupby("rank").size().tolist() == [4, 4, 4]


FIXTURES = Path(__file__).parents[3] / "fixtures"
RECORDED = Path(__file__).parents[3] / "fixtures" / "traces"


@pytest.mark.parametrize(
    ("folder", "rank", "cause"),
    [
        (RECORDED / "straggler_4ranks", 3, "compute"),
        (RECORDED / "straggler_gc_4ranks", 3, "gc"),
        (FIXTURES / "straggler_data_4ranks", 3, "data"),
        (FIXTURES / "straggler_data_2ranks", 1, "data"),
        (RECORDED / "healthy_4ranks", None, None),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else None,
)
def test_recordings_of_our_own_jobs(folder, rank, cause):
    found = traces.analyze(discover(folder).of(Kind.TRACE)).data.stragglers
    assert [(slow.rank, slow.cause) for slow in found] == ([] if rank is None else [(rank, cause)])


def test_recordings_of_two_moments_are_told_apart(maker):
    """A finding on both recordings uses the numbers of the longer one, like the verdict; no bar overlaps another."""
    files = []
    for step, length in ((5, 10 * MS), (10, 40 * MS)):
        made = maker.Tracing(rank=0)
        made.step(step, 0, length)
        made.kernel("gemm", 0, length // 4, launch=(0, 10))
        made.kernel("ncclDevKernel_AllReduce", length // 4, 3 * length // 4, launch=(10, 10))
        files.append(maker.save(made.text(), step=f"iteration_{step}"))
    report = traces.analyze(files)
    [finding] = [one for one in report.findings if one.id == "trace.exposed_communication"]
    assert "Collectives ran for 30.0 ms, and nothing was computed meanwhile" in finding.why
    assert finding.title.endswith("of the recorded time of rank 0")
    assert [fact.sentence for fact in finding.evidence[:2]] == [
        "rank 0, device 0, step 10: 40.0 ms from the first to the last kernel; 40.0 ms at work, 0 s idle",
        "rank 0: collectives ran for 30.0 ms: 30.0 ms without compute, 0 s during compute",
    ]
    assert [row[2] for row in time_by_rank(report.data.ranks).rows] == ["5", "10"]
    assert bar_names(report.data.ranks) == ["rank 0, step 5", "rank 0, step 10"]


def test_garbage_collection_inside_the_loader_is_not_counted_for_the_loader():
    report = traces.analyze(discover(RECORDED / "straggler_gc_4ranks").of(Kind.TRACE))
    rows = {str(row.kind): row for row in report.data.opportunities}
    assert rows["data_loader"].taken_ns == pytest.approx(35.3 * MS, rel=0.02)
    assert rows["python"].taken_ns == pytest.approx(536.2 * MS, rel=0.02)
    imbalance = rows["imbalance"]
    assert imbalance.saved_ns <= imbalance.taken_ns
    assert imbalance.check.startswith("Call gc.disable() on all ranks")
