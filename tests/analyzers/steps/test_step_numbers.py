"""Join the recorded steps, numbered from 1, with a log of the script that counts from 0 or from 1."""

import json
from pathlib import Path

import pytest

from analyzers import run, steps
from analyzers.report import Report
from analyzers.steps import StepsData, views

RECORDED = 20
BAD = 13


def answer(folder: Path, first: int, count: int, every: int = 1) -> Report[StepsData]:
    """Analyze a run of 20 recorded steps whose log prints `count` losses from step `first` on, NaN from BAD on."""
    (folder / "steps").mkdir()
    (folder / "logs").mkdir()
    header = {"schema": "workbench.steps/1", "rank": 0, "world_size": 1, "device": "cpu"}
    recorded = [
        {"step": step, "start_ns": step * 10**8, "dur_ns": 9 * 10**7, "phases": {}, "loss": None, "grad_norm": None}
        for step in range(1, RECORDED + 1)
    ]
    (folder / "steps" / "rank_0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [header, *recorded]))
    # A log that counts from 0 calls the first bad step BAD - 1.
    bad_from = BAD if first + count > RECORDED else BAD - 1
    printed = range(first, first + count, every)
    lines = [f"step {step} loss {'nan' if step >= bad_from else 2.0 - step / 100:.4}\n" for step in printed]
    (folder / "logs" / "stdout.log").write_text("".join(lines))
    return steps.analyze(run.discover(folder).artefacts)


@pytest.mark.parametrize(
    ("first", "count", "every", "from_0"),
    [(0, 20, 1, True), (0, 20, 2, True), (1, 20, 1, False), (0, 21, 1, False), (0, 21, 4, False)],
)
def test_a_log_that_counts_from_0_is_joined_to_steps_that_count_from_1(tmp_path, first, count, every, from_0):
    report = answer(tmp_path, first, count, every)
    seen = next(step for step in range(BAD, 21) if (step - from_0 - first) % every == 0)
    assert report.data.first_nonfinite_step == seen
    named = f"The script's log counts from 0: it calls it step {seen - 1}" in report.findings[0].why
    assert named == from_0
    losses = views.series(run.discover(tmp_path).artefacts).set_index("step")["loss"].dropna()
    assert losses.index[0] == (1 if from_0 else max(first, every))
