"""Read saved pages of PyTorch's debug server, and the text files that it writes.

The pages `stuck_gil` and `native` come from torch 2.13 and four real gloo ranks. The server cannot show tables for
gloo, so `tables` was made from simulated dumps.
"""

import shutil
from pathlib import Path

import pytest

from analyzers import run
from analyzers.errors import InputError
from analyzers.hangs import analyze, views

PAGES = Path(__file__).parents[2] / "fixtures/debug_server"


def test_a_rank_that_holds_the_gil_answers_with_its_dump_and_to_py_spy():
    report = analyze(run.discover(PAGES / "stuck_gil"))
    assert (report.verdict.kind, report.verdict.ranks) == ("host_stuck", [2])
    assert "load_batch (stuck_job.py:8)" in report.verdict.sentence
    assert "never joined all_reduce #6 of process group mesh_tp" in report.verdict.sentence
    waiting = {fact.text: fact.line for fact in report.findings[0].evidence}
    assert waiting["ranks 0-1 wait in all_reduce #4 of process group default_pg"] == "/job/stuck_job.py:11"


@pytest.mark.parametrize("names", [["stacks.html.gz", "pyspy_dump.html.gz"], ["*.txt.gz"]])
def test_stacks_alone_show_who_is_in_no_collective(tmp_path, names):
    for path in (path for name in names for path in (PAGES / "stuck_gil").glob(name)):
        shutil.copy(path, tmp_path)
    report = analyze(run.discover(tmp_path))
    assert (report.verdict.kind, report.verdict.ranks, report.verdict.confidence) == ("host_stuck", [2], 0.52)
    assert report.verdict.sentence == (
        "Rank 2 is stuck in load_batch (stuck_job.py:8) and in no collective;"
        " ranks 0-1 wait in all_reduce (job/stuck_job.py:11), rank 3 waits in all_reduce (job/stuck_job.py:15)"
    )
    assert "Only one stack was taken of each rank" in report.findings[0].why


def test_native_frames_of_a_page():
    shown = views.stacks(run.discover(PAGES / "native.html.gz"))
    waiting = shown[shown["name"] == "c10d::Work::wait"]
    assert sorted(rank for ranks in waiting["ranks"] for rank in ranks) == [0, 1, 3]
    assert not waiting["own"].any()


@pytest.mark.parametrize("name", ["shape.html.gz", "shape.txt.gz"])
def test_tables_hold_what_each_rank_issued(name):
    report = analyze(run.discover(PAGES / "tables" / name))
    assert (report.verdict.kind, report.verdict.ranks) == ("mismatch", [3])
    assert "Rank 3 passed a tensor of 6x1024 to _all_gather_base" in report.verdict.sentence
    assert "while rank 1 passed a tensor of 4x1024, in collective #5" in report.verdict.sentence
    assert {(g.desc, tuple(g.ranks)) for g in report.data.groups} == {
        *(("mesh_tp", ranks) for ranks in ((0, 1), (2, 3))),
        *(("mesh_dp", ranks) for ranks in ((0, 2), (1, 3))),
        ("default_pg", (0, 1, 2, 3)),
    }


def test_a_rank_that_refused_the_server_is_dead():
    report = analyze(run.discover(PAGES / "tables/dead.html.gz"))
    assert (report.verdict.kind, report.verdict.ranks) == ("dead", [3])
    assert "no dump of rank 3: PyTorch's debug server in its process refuses connections" in report.verdict.missing


def test_other_pages_say_which_to_save():
    for path in (PAGES / "failed.html.gz", PAGES / "stuck_gil/wait_counters_20261121_191710.txt.gz"):
        with pytest.raises(InputError) as caught:
            run.discover(path)
        assert "/fr_trace_json" in caught.value.hint
