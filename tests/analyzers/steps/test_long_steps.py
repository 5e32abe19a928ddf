"""Find single long steps: a stall that happens once is found; recurring long steps and normal variation are not."""

import numpy as np
import pytest

from analyzers import run, steps
from analyzers.report import Severity


def report_on(folder, seconds):
    path = folder / "log.csv"
    rows = [f"{n},2.0,{value:.6f}" for n, value in enumerate(seconds, 1)]
    path.write_text("\n".join(["step,loss,step_time_s", *rows]))
    return steps.analyze(run.discover(path).artefacts)


def usual(count, seed=0):
    return 0.6 * (1 + 0.05 * np.abs(np.random.default_rng(seed).normal(size=count)))


def test_one_long_step_is_a_finding(tmp_path, here):
    seconds = usual(300)
    seconds[200] = 90.0
    report = report_on(tmp_path, seconds)
    finding = next(f for f in report.findings if f.id == "steps.long_step")
    assert (finding.step, finding.severity) == (201, Severity.WARNING)
    assert "Step 201 takes 90.0 s, 146 times the usual" in finding.title
    assert report.verdict.kind == "long_step"
    assert report.data.long_steps[0].usual_s == pytest.approx(0.62, abs=0.02)


def test_a_long_step_that_cost_little_is_a_note(tmp_path, here):
    seconds = usual(3000)
    seconds[2000] = 6.0
    report = report_on(tmp_path, seconds)
    assert [f.severity for f in report.findings if f.id == "steps.long_step"] == [Severity.INFO]
    assert report.verdict.kind == "healthy"


@pytest.mark.parametrize("kind", ["warm-up", "checkpoints", "heavy tail", "slower"])
def test_what_recurs_or_varies_is_no_stall(kind, tmp_path, here):
    seconds = usual(400, seed=3)
    if kind == "warm-up":
        seconds[:3] = 60.0
    elif kind == "checkpoints":
        seconds[49::50] += 20.0
    elif kind == "heavy tail":
        seconds *= np.exp(0.3 * np.random.default_rng(1).normal(size=400))
    else:
        seconds[200:] *= 3
    assert [f for f in report_on(tmp_path, seconds).findings if f.id == "steps.long_step"] == []


def test_the_rank_and_the_phase_of_a_long_step(job):
    simulated = job(ranks=4, steps=60)
    report = steps.analyze(simulated.run(lambda rank, step: {"data_wait": 5000.0} if (rank, step) == (2, 40) else {}))
    (stall,) = report.data.long_steps
    assert (stall.step, stall.ranks, stall.phase) == (40, [2], "data_wait")
    assert "the others waited for rank 2" in next(f for f in report.findings if f.id == "steps.long_step").title
