"""The small charts of the first page."""

import itertools

import pytest

from analyzers.rooms import room_for
from analyzers.run import TIMED, discover
from analyzers.steps import views
from analyzers.store import Options
from workbench.web.pages.overview import step_overview
from workbench.web.served_run import served_run


def figure_of(run):
    shown = step_overview(served_run(run, room_for(run), Options()))
    return shown and shown.children.figure


def test_memory_step_time_and_loss_share_their_steps_and_the_failed_one_is_marked(oom):
    figure = figure_of(oom)
    memory, times, losses = figure["data"]
    logged = views.series(oom.of(*TIMED)).groupby("step")
    assert (memory["x"], round(memory["y"][-1] / 2**20, 1)) == ([2, 3, 4, 5, 6], 195.2)
    assert times["x"] == losses["x"] == [1, 2, 3, 4, 5]
    assert times["y"] == pytest.approx(logged["dur_s"].max().tolist())
    assert losses["y"] == pytest.approx(logged["loss"].max().tolist())
    assert figure["layout"]["xaxis"]["range"] == [0.5, 6.5]
    assert [line["x0"] for line in figure["layout"]["shapes"]] == [6]


def test_the_charts_do_not_overlap(oom):
    domains = [axis["domain"] for name, axis in figure_of(oom)["layout"].items() if name.startswith("yaxis")]
    assert len(domains) == 3
    assert all(upper[0] > lower[1] for upper, lower in itertools.pairwise(domains))


def test_a_warning_marks_no_step(fixtures):
    figure = figure_of(discover(fixtures / "straggler_data_2ranks"))
    assert (len(figure["data"]), figure["layout"]["shapes"]) == (2, [])


def test_a_run_with_one_kind_of_numbers_has_no_small_charts(fixtures):
    assert figure_of(discover(fixtures / "oom_2ranks" / "memory_snapshot")) is None
