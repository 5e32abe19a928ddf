"""Clock drift is estimated within the stated error; clocks without drift are not corrected."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from analyzers import traces
from analyzers.run import Kind, discover
from analyzers.traces import views
from analyzers.traces.clocks import Clock, drift

SIMULATED = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[4] / "benchmarks" / "traced_job.py")))
SLOW = [SIMULATED.Host("tokenize", 40_000_000), SIMULATED.Op("aten::mm", "gemm", 200_000)]
PARTS = [*SLOW, SIMULATED.Collective("allreduce", 1000, 20_000)] * 30
PPM, ROUNDING = 40, 0.001


def ends(seed, *, ppm=0.0, scatter_ns=30_000, seconds=40, count=400):
    """Return the times at which a clock sees collectives end, and its offset then; a busy host sees some of them
    late.
    """
    dice = np.random.default_rng(seed)
    at = np.sort(dice.integers(0, seconds * 1_000_000_000, count)) + 1_790_857_026_000_000_000
    noise = dice.laplace(0, scatter_ns, count) + dice.choice([0, 3_000_000], count, p=[0.95, 0.05])
    return at, np.rint(7_000_000 + (at - at[0]) * ppm * 1e-6 + noise).astype(np.int64)


@pytest.mark.parametrize("ppm", [-80.0, 3.0, 25.0, 400.0])
def test_a_planted_drift_is_found_to_the_stated_error(ppm):
    found = [drift(*ends(seed, ppm=ppm)) for seed in range(10)]
    assert all(abs(one.ppm - ppm) <= one.error_ppm < 1 for one in found)


@pytest.mark.parametrize("count", [5, 30, 400])
def test_ends_that_only_scatter_prove_no_drift(count):
    assert {drift(*ends(seed, count=count)).ppm for seed in range(20)} == {0.0}


def test_a_jump_is_no_drift():
    at, ahead = ends(1)
    assert drift(at, ahead + np.where(at > at[150], 200_000, 0)).ppm == 0.0


@pytest.fixture(scope="module")
def drifting(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drifting")
    late = SIMULATED.Fault(2, host="tokenize", ns=1_000_000)
    return folder, SIMULATED.job(folder, 4, 2, PARTS, faults=[late], offset=2_000_000_000, ppm=PPM)


def test_ranks_whose_clocks_drift_are_compared_as_if_they_did_not(drifting):
    folder, real = drifting
    found = traces.analyze(discover(folder).of(Kind.TRACE)).data
    for rank, clock in zip(real[1:], found.clocks[1:], strict=True):
        assert abs(clock.drift_ppm - rank.ppm / (1 + rank.ppm * 1e-6)) <= clock.drift_error_ppm + ROUNDING
        assert abs(int(clock.ahead(clock.at_ns)) - (clock.at_ns - unix(rank, clock.at_ns))) <= 2
        assert clock.agrees
        assert clock.residual_ns <= 2
    last = [max(arrivals) for arrivals in zip(*(rank.arrivals for rank in real), strict=True)]
    for rank, row in zip(real, found.waits, strict=True):
        assert abs(row.wait_ns - sum(then - at for then, at in zip(last, rank.arrivals, strict=True))) <= 4 * len(last)
    assert [(slow.rank, slow.cause) for slow in found.stragglers] == [(2, "host")]


def unix(rank, shown):
    """Return the true time at which a rank's clock shows `shown`."""
    passed = shown - SIMULATED.BASE_NS - SIMULATED.BEGIN_NS - rank.offset
    return SIMULATED.BASE_NS + SIMULATED.BEGIN_NS + round(passed / (1 + rank.ppm * 1e-6))


def test_all_moments_of_drifting_ranks_lie_on_one_clock(drifting):
    folder, real = drifting
    artefacts = discover(folder).of(Kind.TRACE)
    table = views.lateness(artefacts, limit=10_000)
    begin = min(rank.arrivals[0] for rank in real)
    for rank in real:
        shown = table.loc[table["rank"] == rank.rank, "start_ns"].to_numpy()
        truth = np.array(rank.arrivals) - begin
        assert np.abs(shown - shown.min() - (truth - truth.min())).max() <= 4
    fleet = views.ranks_timeline(artefacts, bins=7)
    assert (fleet[[*views.PARTS]].sum(axis=1) == fleet["dur_ns"]).all()


def test_a_clock_tells_both_ways():
    clock = Clock(rank=1, offset_ns=5_000_000, drift_ppm=123.4, at_ns=1_790_857_026_000_000_000)
    shown = clock.at_ns + np.arange(-10, 10) * 1_000_000_000
    assert np.abs(clock.shows(shown - clock.ahead(shown)) - shown).max() <= 1
