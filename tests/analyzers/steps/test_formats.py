"""Read logs of other trainers: their values, the meaning assigned to each column, and the sentences about it."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest

from analyzers import run, steps, store
from analyzers.errors import InputError
from analyzers.report import Status
from analyzers.steps import views
from analyzers.steps.columns import meaning_of
from analyzers.steps.mapping import parsed_map
from analyzers.steps.model import NumberedBy

ROOT = Path(__file__).parents[3]
FORMATS = runpy.run_path(str(ROOT / "benchmarks" / "step_logs" / "formats.py"))
CASES = FORMATS["CASES"]
RECORDED = ROOT / "tests" / "fixtures" / "other_trainers"


def report_on(path, *column_map):
    return steps.analyze(run.discover(path).artefacts, store.Options(columns=parsed_map(column_map)))


def finding(report, name):
    return next(f for f in report.findings if f.id == name)


@pytest.mark.parametrize("name", [name for name in CASES if name != "recorded_lightning_console"])
def test_each_format_is_read_right(name, tmp_path, here):
    assert FORMATS["wrong"](*CASES[name](tmp_path)) == ""


def test_the_last_line_of_a_bar_is_all_that_a_file_has_of_it(here):
    table = views.series(run.discover(RECORDED / "lightning_console" / "console.log").artefacts)
    assert table["loss"].tolist() == [0.319]


@pytest.mark.parametrize(
    ("name", "meaning", "unit"),
    [
        ("trainer/global_step", "step", ""),
        ("Global Step", "step", ""),
        ("train/loss", "loss", ""),
        ("brisk-sun-3 - train/loss", "loss", ""),
        ("val/loss", None, ""),
        ("eval_loss", None, ""),
        ("brisk-sun-3 - train/loss__MIN", None, ""),
        ("lr-AdamW/pg1", "learning_rate", ""),
        ("Max GPU Memory (GiB)", "memory", "gib"),
        ("MaxMemAllocated (GB)", "memory", "gb"),
        ("elapsed time per iteration (ms)", "step_time", "ms"),
        ("train_step_timing in s", "step_time", "s"),
        ("time", "step_time", ""),
        ("tokens/s", "tokens_per_s", ""),
        ("samples_per_second", None, ""),
        ("time/sample", None, ""),
        ("text", None, ""),
        ("", None, ""),
    ],
)
def test_what_a_name_means(name, meaning, unit):
    known = meaning_of(name)
    assert (known and str(known.quantity)) == meaning
    assert (known.unit if known else "") == unit


def test_the_report_says_what_was_taken_for_what(here):
    report = report_on(RECORDED / "hf_state" / "trainer_state.json")
    note = finding(report, "steps.columns")
    assert "'step' as step" in note.title
    assert "'grad_norm' as gradient norm" in note.title
    assert note.evidence[0].text.startswith("last values: step = 60, loss = ")
    assert "eval_loss" in note.evidence[1].text
    (log,) = json.loads(report.json())["data"]["logs"]
    assert {c["name"]: c["last"] for c in log["columns"]}["step"] == 60
    assert {c["name"]: c["quantity"] for c in log["columns"]}["learning_rate"] == "learning_rate"
    assert log["numbered_by"] == "column"


def test_a_log_of_our_own_says_nothing_of_columns(here):
    report = report_on(ROOT / "tests" / "fixtures" / "healthy_2ranks")
    assert "logs" not in json.loads(report.json())["data"]
    assert not [f for f in report.findings if f.id == "steps.columns"]


def test_rows_without_a_step_are_numbered_and_that_is_said(here):
    report = report_on(RECORDED / "hf_console_no_bar" / "console.log")
    assert "`workbench steps PATH --map step=FIELD`" in finding(report, "steps.numbered_by_line").next
    assert report.data.logs[0].numbered_by is NumberedBy.LINE
    assert report.data.ranks[0].last_step == 12


def test_an_unknown_unit_is_said_to_be_unknown(tmp_path, here):
    path = tmp_path / "log.csv"
    path.write_text("step,loss,step_time,memory\n" + "".join(f"{n},{5 - n / 10},3.5,12\n" for n in range(20)))
    report = report_on(path)
    assert "(unit unknown)" in finding(report, "steps.columns").title
    assert [text for text in report.verdict.missing if "step_time" in text]
    assert report.data.ranks[0].median_step_s is None
    mapped = report_on(path, "step_time_ms=step_time", "memory_gib=memory")
    assert mapped.data.ranks[0].median_step_s == pytest.approx(3.5e-3)
    assert mapped.data.ranks[0].peak_memory_bytes == 12 << 30


@pytest.mark.parametrize(
    ("text", "message"),
    [("loss", "not of the form"), ("colour=red", "unknown quantity"), ("loss=nothing", "no column nothing")],
)
def test_a_map_that_fits_nothing(text, message, tmp_path, here):
    path = tmp_path / "log.csv"
    path.write_text("step,a\n1,2\n2,3\n")
    with pytest.raises(InputError, match=message):
        report_on(path, text)


def test_steps_without_any_number_are_unknown_not_healthy(tmp_path, here):
    path = tmp_path / "log.csv"
    path.write_text("step,lr\n1,0.1\n2,0.1\n")
    assert report_on(path).verdict.status is Status.UNKNOWN


def test_copies_of_the_history_in_each_checkpoint_count_once(tmp_path, here):
    state = json.loads((RECORDED / "hf_state" / "trainer_state.json").read_text())
    for step in (20, 40, 60):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        rows = [row for row in state["log_history"] if row["step"] <= step]
        (folder / "trainer_state.json").write_text(json.dumps(state | {"log_history": rows}))
    report = report_on(tmp_path)
    assert report.data.ranks[0].steps == 12
    assert len(report.data.logs) == 1
    assert any("same steps" in text for text in report.verdict.missing)


def test_resumed_duplicate_and_evaluation_rows(tmp_path, here):
    path = tmp_path / "log.jsonl"
    rows = [{"step": n, "loss": 5.0} for n in range(1, 11)] + [{"step": 10, "val_loss": 4.0}]
    rows += [{"step": n, "loss": 3.0} for n in range(6, 16)] + [{"step": 15, "loss": 2.0}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    report = report_on(path)
    (log,) = report.data.logs
    assert (log.restarts, log.duplicates) == (1, 1)
    table = views.series(run.discover(path).artefacts).set_index("step")
    assert table["loss"].tolist() == [5.0] * 5 + [3.0] * 9 + [2.0]
    assert table["val_loss"].dropna().tolist() == []  # of a row that was done again


def test_a_log_and_a_console_of_the_same_run_and_a_comparison(tmp_path, here):
    from analyzers import compare

    for name, factor in (("a", 1.0), ("b", 2.0)):
        (tmp_path / name).mkdir()
        rows = (f"{n},{factor * (5 - n / 100)},{100 * factor}" for n in range(1, 101))
        (tmp_path / name / "log.csv").write_text("\n".join(["step,loss,step_time_ms", *rows]))
    report = compare.analyze(run.discover(tmp_path / "a"), run.discover(tmp_path / "b"))
    assert report.verdict.status is not Status.OK
    assert np.isclose(report_on(tmp_path / "b").data.ranks[0].median_step_s, 0.2)


def test_the_only_rank_that_prints_is_not_missed_by_the_others(tmp_path, here):
    path = tmp_path / "main.log"
    lines = (
        f"[default7]: iteration {n:8d}/ 1000 | elapsed time per iteration (ms): 2210.4 | lm loss: {9 - n / 10:.6E} |"
        " number of skipped iterations:   0 | number of nan iterations:   1 |"
        for n in range(1, 31)
    )
    path.write_text("\n".join(lines))
    report = report_on(path)
    assert [r.rank for r in report.data.ranks] == [7]
    assert report.verdict.missing == []
    names = {column.name for column in report.data.logs[0].columns}
    assert {"number of skipped iterations", "number of nan iterations"} <= names
