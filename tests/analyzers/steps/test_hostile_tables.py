"""Huge, damaged or hostile tables of metrics: reading is bounded, and the readable part is right."""

import gzip
import json
import resource
import time

import numpy as np
import pandas as pd
import pytest

from analyzers import kinds, run, steps, store
from analyzers.errors import InputError, WorkbenchError
from analyzers.steps import views
from analyzers.steps.loading import load


def read(path, text, **options):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    artefacts = run.discover(path).artefacts
    return views.series(artefacts, store.Options(**options)).set_index("step")


@pytest.mark.parametrize(
    ("name", "text", "losses"),
    [
        ("lines that are too long", "step,loss\n1,5\n2,4,9,9\n3,3\n", {1: 5, 2: 4, 3: 3}),
        ("lines that are too short", "step,lr,loss\n1,1,5\n2,2\n3,3,3\n", {1: 5, 2: np.nan, 3: 3}),
        ("a truncated last line", "step,lr,loss\n1,1,5\n2,1,4\n3,1", {1: 5, 2: 4}),
        ("an open quote", 'step,loss,note\n1,5,a\n2,4,"b\n3,3,c\n', {1: 5, 2: 4, 3: 3}),
        ("a zero byte", "step,loss\n1,5\n2,\0\n3,3\n", {1: 5, 2: np.nan, 3: 3}),
        ("bytes that are no UTF-8", b"step,loss,note\n1,5,\xff\xfe\n2,4,b\n", {1: 5, 2: 4}),
        ("blank lines", "\n\nstep,loss\n\n1,5\n\n2,4\n\n", {1: 5, 2: 4}),
        ("names twice", "step,loss,loss\n1,5,9\n2,4,9\n", {1: 5, 2: 4}),
        ("words among the numbers", "step,loss\n1,5\n2,oops\n3,3\n4,2\n", {1: 5, 2: np.nan, 3: 3, 4: 2}),
        ("steps that are no numbers", "step,loss\n1,5\nx,4\n3,3\n", {1: 5, 3: 3}),
        ("steps beyond int64", "step,loss\n1,5\n1e300,4\n-1e30,4\n3,3\n", {1: 5, 3: 3}),
        ("a header with other columns", "step,loss\n1,5\nstep,lr,loss\n2,0.1,4\n", {1: 5, 2: 4}),
        ("old line ends", "step,loss\r\n1,5\r\n2,4\r\n", {1: 5, 2: 4}),
        ("thousands", 'step,loss\n"1,000","5.5"\n"2,000","4.5"\n', {1000: 5.5, 2000: 4.5}),
        ("UTF-16", "step,loss\n1,5\n2,4\n".encode("utf-16"), {1: 5, 2: 4}),
    ],
)
def test_damaged_tables(name, text, losses, tmp_path, here):
    assert read(tmp_path / "log.csv", text)["loss"].to_dict() == pytest.approx(losses, nan_ok=True), name


def test_cells_are_never_run_and_names_stay_text(tmp_path, here):
    table = read(tmp_path / "log.csv", "step,loss,=cmd|' /C calc'!A0\n1,5,7\n2,4,\"=1+1\"\n3,3,8\n")
    assert table["=cmd|' /C calc'!A0"].dropna().tolist() == [7, 8]


@pytest.mark.parametrize("text", ["NaN", "nan", "inf", "-Infinity", "-nan"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_loss_that_is_no_number_is_said_to_be(text, kind, tmp_path, here):
    path = tmp_path / f"log.{kind}"
    if kind == "csv":
        path.write_text("step,loss\n" + "".join(f"{n},{5 if n < 8 else text}\n" for n in range(1, 12)))
    else:
        value = {"nan": "NaN", "-nan": "NaN", "inf": "Infinity"}.get(text, text)
        path.write_text("".join(f'{{"step": {n}, "loss": {5 if n < 8 else value}}}\n' for n in range(1, 12)))
    report = steps.analyze(run.discover(path).artefacts)
    assert (report.verdict.kind, report.data.first_nonfinite_step) == ("nonfinite_loss", 8)


def test_an_empty_loss_is_not_broken(tmp_path, here):
    path = tmp_path / "log.csv"
    path.write_text(
        "step,loss,val_loss\n" + "".join(f"{n},{5 if n % 2 else ''},{'' if n % 2 else 4}\n" for n in range(40))
    )
    report = steps.analyze(run.discover(path).artefacts)
    assert (report.verdict.kind, report.data.first_nonfinite_step) == ("healthy", None)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"step": 1, "loss": ' + "[" * 100_000,
        '{"step": 1, "a": ' * 50_000,
        "step,loss\n",
        "step,loss\n,\n,\n",
        '{"step": "x", "loss": "y"}\n' * 5,
        '{"step": 1e999, "loss": 1}\n' * 5,
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl"])
def test_files_without_a_step_are_errors_with_a_hint(text, suffix, tmp_path, here):
    path = tmp_path / f"log.{suffix}"
    path.write_text(text)
    with pytest.raises(WorkbenchError) as caught:
        steps.analyze(run.discover(path).artefacts)
    assert caught.value.hint


def test_wide_tables_and_rows_of_ever_new_names_are_bounded(tmp_path):
    wide = "step,loss," + ",".join(f"c{n}" for n in range(5000)) + "\n" + ("1,2," + ",".join("3" * 5000) + "\n") * 3
    (tmp_path / "wide.csv").write_text(wide)
    assert len(load(run.discover(tmp_path / "wide.csv").artefacts, store.Options()).numbers.columns) <= 64
    rows = "".join(json.dumps({"step": n, "loss": 1.0, f"name {n}": n}) + "\n" for n in range(20_000))
    (tmp_path / "names.jsonl").write_text(rows)
    loaded = load(run.discover(tmp_path / "names.jsonl").artefacts, store.Options())
    assert len(loaded.table) == 20_000
    assert len(loaded.numbers.columns) <= 64


def test_a_bomb_stays_within_the_limit(tmp_path):
    path = tmp_path / "log.csv.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b"step,loss\n")
        for _ in range(200):
            file.write(b"1,2\n" * 1_000_000)
    with pytest.raises(InputError):
        steps.analyze(run.discover(path).artefacts, store.Options(max_memory=512 << 20))


def test_hostile_lines_of_a_console_take_no_long(tmp_path):
    path = tmp_path / "job.log"
    evil = "a/" * 7000 + "\n" + "step " * 3000 + "\n" + "loss=" * 3000 + "\n" + "a b c d e f " * 1200 + "step:\n"
    path.write_text("step 1 loss 2.0\n" + evil * 20 + "step 2 loss 1.0\n")
    began = time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    table = views.series(run.discover(path).artefacts).set_index("step")
    took = time.process_time() + resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - began
    assert table["loss"].to_dict() == {1: 2.0, 2: 1.0}
    assert took < 20


def test_a_large_table_takes_no_more_than_a_few_times_of_pandas(tmp_path):
    path, count = tmp_path / "big.csv", 200_000
    chance = np.random.default_rng(0)
    pd.DataFrame(
        {"step": np.arange(count), "loss": 3 + chance.random(count), "lr": 1e-4, "step_time_ms": chance.random(count)}
    ).to_csv(path, index=False)

    def seconds(function):
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        began = sum(u.ru_utime + u.ru_stime for u in usage)
        function()
        usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(u.ru_utime + u.ru_stime for u in usage) - began

    plain = min(seconds(lambda: pd.read_csv(path)) for _ in range(3))
    artefacts = run.discover(path).artefacts
    ours = min(seconds(lambda: load(artefacts, store.Options(cache=False, jobs=1))) for _ in range(3))
    assert ours < 15 * plain + 1.0


@pytest.mark.parametrize(
    "piece", ["1", "step 1 ", "loss=", "train ", '"step":', '"a/', "[1/", "it/s ", "[ ", "epoch [1] "]
)
@pytest.mark.parametrize("suffix", ["log", "json", "csv"])
def test_recognising_a_hostile_file_takes_no_long(piece, suffix, tmp_path):
    path = tmp_path / f"evil.{suffix}"
    path.write_text(piece * (200_000 // len(piece)))
    began = time.process_time()
    kinds.kind_of(path, alone=True)
    assert time.process_time() - began < 3
