"""Reduced tables for charts: outliers are kept."""

import numpy as np
import pandas as pd
import pytest

from analyzers.steps import views


@pytest.fixture
def run_of(job):
    """Simulate 64 ranks and 90 steps: rank 5 is late once in step 41, the loss spikes in step 77, step 13 is slow
    everywhere.
    """

    def more(rank, step):
        return {"gc": 80.0} if (rank, step) == (5, 41) else {"bwd": 300.0} if step == 13 else {}

    return job(ranks=64, steps=90, device="cuda").run(more, loss=lambda _, step: 9.0 if step == 77 else 2.0)


def test_a_sparkline_keeps_what_stands_out(run_of):
    table = views.sparkline(run_of, bins=30)
    assert table.index.tolist() == list(range(1, 91, 3))
    assert (table["steps"] == 3).all()
    assert table["highest_s"].idxmax() == 13
    assert table["loss_highest"].idxmax() == 76
    assert table.loc[76, "loss"] == pytest.approx((9 + 2 + 2) / 3)
    assert (table["lateness_s"].idxmax(), table.loc[40, "last_rank"]) == (40, 5)
    assert table.loc[40, "lateness_s"] == pytest.approx(0.08, abs=0.004)


def test_the_whole_run_unreduced(run_of):
    fine = views.sparkline(run_of, bins=1000)
    times = views.series(run_of).groupby("step")["dur_s"]
    pd.testing.assert_series_equal(fine["median_s"], times.median(), check_names=False)
    pd.testing.assert_series_equal(fine["highest_s"], times.max(), check_names=False)


def test_phase_stacks_add_up_to_the_steps(run_of):
    table = views.phase_stack(run_of, rank=3, bins=10)
    assert len(table) == 10
    mine = views.series(run_of).query("rank == 3")
    expected = mine.groupby((mine["step"] - 1) // 9)["dur_s"].mean()
    np.testing.assert_allclose(table.sum(axis=1), expected, rtol=1e-9)
    assert list(table)[:2] == ["bwd", "fwd"]


def test_heat_folds_ranks_and_steps(run_of):
    table = views.heat(run_of, rows=16, bins=20)
    assert table.shape[0] == 16
    assert table.shape[1] <= 20
    assert table.max(axis=1).idxmax() == 4  # ranks 4 to 7
    assert table.max().idxmax() <= 41 < table.max().idxmax() + 5
    assert table.to_numpy().max() == pytest.approx(0.08, abs=0.004)


def test_goodput_by_rank(run_of):
    table = views.goodput(run_of)
    assert table.index.tolist() == list(range(64))
    assert np.ptp(table.sum(axis=1)) < 1e-9
    assert table.loc[5, "gc"] == pytest.approx(0.08, abs=0.001)
    assert table.loc[6, "stall"] > table.loc[5, "stall"] + 0.07


def test_logs_that_do_not_tell_who_is_late(job):
    artefacts = job(ranks=1, steps=5).run()
    assert views.heat(artefacts).empty
    assert views.sparkline(artefacts)["last_rank"].isna().all()
