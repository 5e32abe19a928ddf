"""Test the folder of `workbench parity`: its runs, their charts, and files that were changed afterwards."""

import math
from pathlib import Path

import pytest
from meshes import GRADIENT, LOSSES, meshes

from analyzers.errors import InputError
from analyzers.parity import NamedRun, analyze
from analyzers.parity.model import Curve, ValueKind
from analyzers.parity.report import FILE, curve_table, difference_table, read_runs, write_runs
from analyzers.rooms import PARITY, ask, room_for
from analyzers.run import discover
from analyzers.store import Options


def test_a_folder_is_asked_as_what_it_is(tmp_path: Path) -> None:
    run = discover(meshes(tmp_path))
    assert room_for(run) == PARITY
    assert room_for(discover(run.root / "run_1")) != PARITY
    assert room_for(discover(tmp_path)) != PARITY
    report = ask(PARITY, run, Options(cache=False))
    assert report.verdict.kind == "different"
    assert report.findings[0].step == 3


def test_names_and_tolerance_are_kept(tmp_path: Path) -> None:
    write_runs(tmp_path, [NamedRun("tp=2", tmp_path / "run_1"), NamedRun("", "elsewhere/run_2")], 0.02)
    runs, tolerance = read_runs(tmp_path)
    assert tolerance == 0.02
    assert runs == [NamedRun("tp=2", tmp_path / "run_1"), NamedRun("", tmp_path / "run_2")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"runs": 3}',
        "[" * 100_000,
        '{"runs": [{"name": "a", "folder": "../secret"}], "tolerance": 1e-5}',
        '{"runs": [{"name": "a", "folder": "/etc"}], "tolerance": 1e-5}',
        '{"runs": [{"name": "a", "folder": ""}, {"name": "a", "folder": ".."}], "tolerance": 1e-5}',
        '{"runs": [{"name": "a", "folder": "run_1"}, {"name": "b", "folder": "run_2"}], "tolerance": -1}',
    ],
)
def test_a_damaged_or_hostile_list_of_runs_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    with pytest.raises(InputError):
        read_runs(tmp_path)


def test_charts_have_a_column_for_each_run(tmp_path: Path) -> None:
    root = meshes(tmp_path)
    data = analyze([NamedRun("a", root / "run_1"), NamedRun("a", root / "run_3")], Options(cache=False)).data
    curves, differences = curve_table(data, Curve.LOSS), difference_table(data, Curve.LOSS)
    assert list(curves) == ["a", "a (2)"]
    assert curves["a"].tolist() == list(LOSSES)
    assert list(differences) == ["a (2)"]
    assert differences["a (2)"].tolist() == pytest.approx([0, 0, 0.01, 0.01, 0.01, 0.01])
    first = data.runs[1].first
    assert first
    assert (first.step, first.kind, first.module, first.tensor) == (
        3,
        ValueKind.GRADIENT,
        GRADIENT.removesuffix(".weight"),
        "weight",
    )


def test_a_step_that_one_run_has_not_logged_has_no_difference(tmp_path: Path) -> None:
    root = meshes(tmp_path)
    log = root / "run_2" / "steps" / "rank_0.jsonl"
    log.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if '"step": 6' not in line))
    data = analyze(read_runs(root)[0], Options(cache=False)).data
    table = difference_table(data, Curve.LOSS)
    assert table.index.tolist() == [1, 2, 3, 4, 5, 6]
    assert [math.isnan(value) for value in table["tp=2"]] == [False] * 5 + [True]
