"""Analyse step logs of ours and of torchtitan, with known causes."""

import contextlib
import gzip
import json
import math
import random

import pytest

from analyzers import run, steps, store
from analyzers.errors import InputError
from analyzers.steps import views
from analyzers.steps.rank_differences import Growth, growth_finding

MS = 1_000_000


def line(step, *, slow=None, **more):
    """Return a step of 100 ms, of which 40 ms are local work; `slow` maps a phase to its additional ns."""
    slow = slow or {}
    phases = {"data_wait": 2 * MS, "fwd": 30 * MS, "bwd": 60 * MS, "gc": 0, "optim": 5 * MS}
    cpu = {"data_wait": MS, "fwd": 15 * MS, "bwd": 20 * MS, "optim": 5 * MS}
    for phase, extra in slow.items():
        phases[phase] += extra
        cpu[phase] = cpu.get(phase, 0) + extra
    return {
        "step": step,
        "start_ns": step * 100 * MS,
        "dur_ns": 100 * MS,
        "phases": phases,
        "cpu_ns": cpu,
        "residual_ns": 3 * MS,
        "tokens": 1000,
        "loss": 5.0 - step / 100,
        "grad_norm": 1.0,
        "memory_bytes": 1 << 30,
        "reserved_bytes": 1 << 30,
        "alloc_retries": 0,
        "tags": ["first"] if step == 1 else [],
        "seqs": {"0": step * 3},
    } | more


@pytest.fixture
def logs(tmp_path, here):
    """Fixture: a function that writes a log per rank; `rows[rank]` are its lines."""

    def write(rows, tail=""):
        (tmp_path / "steps").mkdir(exist_ok=True)
        for rank, lines in rows.items():
            header = {"schema": "workbench.steps/1", "rank": rank, "world_size": len(rows), "device": "cpu"}
            text = "".join(json.dumps(content) + "\n" for content in [header, *lines])
            (tmp_path / "steps" / f"rank_{rank}.jsonl").write_text(text + tail)
        return run.discover(tmp_path).artefacts

    return write


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize(("phase", "cause"), [("fwd", "compute"), ("data_wait", "data"), ("gc", "gc")])
def test_stragglers_and_their_causes(logs, ranks, phase, cause):
    rows = {
        rank: [line(s, slow={phase: 30 * MS} if rank == 1 and s > 10 else None) for s in range(1, 31)]
        for rank in range(ranks)
    }
    report = steps.analyze(logs(rows))
    (late,) = report.data.stragglers
    assert (report.verdict.kind, report.verdict.ranks) == ("straggler", [1])
    assert (late.rank, late.cause, late.first_step) == (1, cause, 11)
    assert late.lateness_s == pytest.approx(0.03)
    assert late.recurrence == pytest.approx(20 / 29)


def test_on_a_busy_machine_twice_the_work_of_the_others_is_late(logs):
    rows = {
        rank: [line(s, dur_ns=330 * MS, slow={"fwd": 70 * MS} if rank == 1 and s > 5 else None) for s in range(1, 11)]
        for rank in range(2)
    }
    (late,) = steps.analyze(logs(rows)).data.stragglers
    assert (late.rank, late.cause, late.first_step) == (1, "compute", 6)


def test_in_a_short_run_a_third_more_processor_time_is_noise(logs):
    rows = {rank: [line(s, slow={"fwd": 13 * MS * rank}) for s in range(1, 6)] for rank in range(2)}
    assert steps.analyze(logs(rows)).data.stragglers == []


def test_memory_that_fills_and_stays_is_no_leak(logs):
    rows = {0: [line(s, memory_bytes=(1000 + 300 * min(s, 10) + s) << 20) for s in range(1, 21)]}
    assert steps.analyze(logs(rows)).verdict.kind == "healthy"


def test_a_healthy_run(logs):
    report = steps.analyze(logs({rank: [line(s) for s in range(1, 31)] for rank in range(4)}))
    assert (report.verdict.kind, report.findings, report.data.stragglers) == ("healthy", [], [])
    first = report.data.ranks[0]
    assert first.median_step_s == pytest.approx(0.1)
    assert first.phases["bwd"] == pytest.approx(0.06)
    assert first.tokens_per_s == pytest.approx(10_000)
    assert first.last_loss == pytest.approx(4.7)


@pytest.mark.parametrize(
    ("device_type", "recorder"),
    [("cuda", "_record_memory_history"), ("", "_record_memory_history"), ("cpu", "MemoryRecorder")],
)
def test_growing_memory_is_recorded_by_what_the_device_has(device_type, recorder):
    finding = growth_finding(Growth(rank=0, step=3, bytes_per_step=1 << 20), device_type)
    assert [name for name in ("_record_memory_history", "MemoryRecorder") if name in finding.next] == [recorder]


@pytest.mark.parametrize("bad", ["nan", "inf", "-inf"])
def test_the_first_loss_that_is_not_finite(logs, bad):
    rows = {
        rank: [line(s, loss=bad if s >= 12 or (s >= 11 and rank == 1) else 4.0) for s in range(1, 16)]
        for rank in range(2)
    }
    report = steps.analyze(logs(rows))
    assert (report.verdict.kind, report.verdict.ranks) == ("nonfinite_loss", [1])
    assert report.data.first_nonfinite_step == 11
    assert report.data.ranks[1].last_loss is None
    assert (
        report.findings[0].evidence[0].sentence == "rank 1: loss not finite at step 11, last finite value 4 at step 10"
    )


def test_spike_drift_growth_and_collective_counts(logs):
    def of(rank):
        return [
            line(
                s,
                loss=9.0 if s == 25 else 4.0 + 0.01 * (s % 3),
                dur_ns=(200 if s > 20 else 100) * MS,
                memory_bytes=(1 << 30) + (s << 24 if rank == 1 else 0),
                seqs={"0": s * 3 - (rank == 1 and s >= 7)},
            )
            for s in range(1, 31)
        ]

    report = steps.analyze(logs({0: of(0), 1: of(1)}))
    found = {f.id: (f.ranks, f.step) for f in report.findings}
    assert found["steps.loss_spike"][1] == 25
    [spike] = [finding for finding in report.findings if finding.id == "steps.loss_spike"]
    assert spike.evidence[0].text.startswith(
        "loss: 4 (step 21), 4.01 (step 22), 4.02 (step 23), 4 (step 24), 9 (step 25)"
    )
    assert found["steps.slowdown"][1] == 21
    assert found["steps.memory_growth"][0] == [1]
    [growth] = [finding for finding in report.findings if finding.id == "steps.memory_growth"]
    assert "MemoryRecorder" in growth.next, "PyTorch records no memory of a CPU"
    assert "_record_memory_history" not in growth.next
    assert found["steps.collective_count"] == ([1], 7)
    [mismatch] = [finding for finding in report.findings if finding.id == "steps.collective_count"]
    assert mismatch.title == "Rank 1 issued 1 collective fewer than rank 0 by the end of step 7"
    assert [fact.text for fact in mismatch.evidence] == [
        "rank 1: last collective in process group 0 is number 20",
        "rank 0: last collective in process group 0 is number 21",
    ]
    assert report.verdict.kind == "collective_count"


def test_collectives_beside_the_steps_are_no_mismatch(logs):
    """Numbers of a group that another thread uses differ for a moment, and are equal again in a later step."""
    behind = {3, 4, 7}
    rows = {rank: [line(s, seqs={"1": s - (rank == 0 and s in behind)}) for s in range(1, 11)] for rank in range(2)}
    assert "steps.collective_count" not in {f.id for f in steps.analyze(logs(rows)).findings}
    rows[1][9:] = [line(10, seqs={"1": 11})]
    found = {f.id: f.step for f in steps.analyze(logs(rows)).findings}
    assert found["steps.collective_count"] == 10


def test_torn_missing_and_unequal_logs_are_said(logs, tmp_path):
    logs({0: [line(s) for s in range(1, 6)], 1: [line(s) for s in range(1, 5)], 2: [line(1)]}, tail='{"step": 9, "du')
    (tmp_path / "steps" / "rank_2.jsonl").unlink()
    report = steps.analyze(run.discover(tmp_path).artefacts)
    found = {f.id: f.ranks for f in report.findings}
    assert found == {"steps.missing_ranks": [2], "steps.torn_line": [0, 1], "steps.unequal_steps": [1]}
    [torn] = [finding for finding in report.findings if finding.id == "steps.torn_line"]
    assert [fact.text for fact in torn.evidence] == [
        "the last whole line of rank 0 is step 5",
        "the last whole line of rank 1 is step 4",
    ]
    assert torn.evidence[1].source.endswith("rank_1.jsonl")
    assert [rank.steps for rank in report.data.ranks] == [5, 4]


def test_hostile_lines_do_no_harm(logs, tmp_path):
    logs({0: [line(1), line(2, phases={f"p{i}": 1 for i in range(500)}, tags="x", loss=[1])]})
    file = tmp_path / "steps" / "rank_0.jsonl"
    file.write_bytes(
        file.read_bytes() + b"\xff\xfe\n[1]\nnull\n" + b"[" * 5000 + b'\n{"step": 3, "dur_ns": 1e400}\n{"step":4}\n'
    )
    assert steps.analyze(run.discover(tmp_path).artefacts).data.ranks[0].last_step == 4


def test_no_step_at_all(logs):
    with pytest.raises(InputError, match="no step"):
        steps.analyze(logs({0: []}))


def test_titans_structured_logs(tmp_path):
    folder = tmp_path / "structured_logs"
    folder.mkdir()
    records = []
    for step in range(1, 6):
        spans = [("fetching_batch", 10.0), ("fwd_bwd", 70.0), ("fwd_bwd", 5.0), ("gc_collect", 1.0)]
        spans += [("optim", 12.5)] if step < 5 else []
        base = {"global_rank": 3, "step": step, "time_us": step * 1000, "log_type": "event"}
        records += [base | {"log_type_name": f"{name}_end", "value": ms} for name, ms in spans]
        records.append(base | {"log_type_name": "metric_value", "event_name": "local_valid_tokens", "value": 64})
        records.append(
            base | {"log_type_name": "step_end", "value": 100.0, "step_tags": ["checkpoint_save"] if step == 2 else []}
        )
    text = "".join(
        json.dumps(record) + "\n" for record in [{"log_type_name": "training_start", "log_type": "instant"}, *records]
    )
    (folder / "training.global_rank_3.20260504-101010-abc.jsonl").write_text(text)
    report = steps.analyze(run.discover(tmp_path).artefacts)
    rank = report.data.ranks[0]
    assert (rank.rank, rank.steps, rank.median_step_s) == (3, 4, pytest.approx(0.1))
    assert rank.phases["fwd_bwd"] == pytest.approx(0.075)
    series = views.series(run.discover(tmp_path).artefacts)
    assert series.loc[series["step"] == 2, "tags"].item() == "checkpoint"


def test_views_and_gzip(logs, tmp_path):
    logs({0: [line(1), line(2, loss=None)], 1: [line(1), line(2, loss="nan")]})
    plain = tmp_path / "steps" / "rank_1.jsonl"
    (tmp_path / "steps" / "rank_1.gz.jsonl").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    found = run.discover(tmp_path).artefacts
    series = views.series(found)
    assert series["rank"].tolist() == [0, 0, 1, 1]
    assert math.isnan(series["loss"].iloc[3])
    phases = views.phases(found, rank=1)
    assert phases.loc[(1, 2), "residual"] == pytest.approx(0.003)
    assert phases.index.names == ["rank", "step"]


def test_one_rank_and_one_step(logs):
    found = logs({rank: [line(s, slow={"fwd": s * MS}) for s in range(1, 6)] for rank in range(3)})
    data = steps.analyze(found, store.Options(rank=1, step=4)).data
    assert [(r.rank, r.steps, r.first_step, r.phases["fwd"]) for r in data.ranks] == [(1, 1, 4, 0.034)]
    assert [r.rank for r in steps.analyze(found, store.Options(step=4)).data.ranks] == [0, 1, 2]
    with pytest.raises(InputError, match="no step log has this rank"):
        steps.analyze(found, store.Options(rank=7))


VALUES = (None, -1, 0, 1, 7, 1 << 55, (1 << 62) - 1, -(1 << 62), 1 << 70, 1e308, -0.5, "nan", "x", [], [3], {}, True)


@pytest.mark.parametrize("seed", range(40))
def test_no_content_of_a_line_is_a_crash(logs, seed):
    """Any field may have any value; the answer may be that there are no steps."""
    rng = random.Random(seed)

    def odd(step):
        row = line(step, device_ns={"fwd": 5}, local_loss=1.0)
        for key in rng.sample(sorted(row), rng.randrange(6)):
            value = rng.choice(VALUES)
            row[key] = (
                {name: rng.choice(VALUES) for name in row[key]} if isinstance(row[key], dict) and value else value
            )
        return row

    rows = {rank: [odd(rng.randrange(40)) for _ in range(rng.choice([1, 3, 60]))] for rank in range(rng.choice([1, 3]))}
    with contextlib.suppress(InputError):
        report = steps.analyze(logs(rows))
        assert report.json()
        if report.data.goodput:
            assert sum(report.data.goodput.parts.values()) == report.data.goodput.wall_ns
