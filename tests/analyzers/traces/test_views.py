"""Data for charts: no event is lost, parts add up, and ranks are on a common clock."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from analyzers.run import Kind, discover
from analyzers.traces import views
from analyzers.traces.costs import is_user_function

SIMULATED = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "traced_job.py")))
RANKS = 3


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    fault = SIMULATED.Fault(1, host="dataloader", ns=5_000_000)
    real = SIMULATED.job(folder, RANKS, 2, SIMULATED.llama(layers=1), faults=[fault], offset=-1_000_000)
    return real, discover(folder).of(Kind.TRACE)


@pytest.mark.parametrize("width", [10, 1000])
def test_a_timeline_joins_what_is_narrow_and_loses_nothing(job, width):
    real, artefacts = job
    table = views.timeline(artefacts[0], width=width)
    kernels = table[table["on_device"]]
    assert kernels["busy_ns"].sum() == sum(end - start for start, end, _ in real[0].work)
    assert kernels["count"].sum() == len(real[0].work)
    for _, lane in kernels.groupby("lane"):
        assert (lane["start_ns"].iloc[1:].to_numpy() >= (lane["start_ns"] + lane["dur_ns"]).iloc[:-1].to_numpy()).all()
    assert set(kernels["kind"]) == {"compute", "communication"}


def test_a_window_holds_what_touches_it(job):
    real, artefacts = job
    begin = min(rank.host for rank in real)
    window = (3_000_000, 4_000_000)
    table = views.timeline(artefacts[0], window=window, width=100_000)
    inside = [
        (start, end)
        for start, end, _ in real[0].work
        if start - SIMULATED.BEGIN_NS < window[1] and end - SIMULATED.BEGIN_NS > window[0]
    ]
    assert begin > SIMULATED.BEGIN_NS
    assert table[table["on_device"]]["count"].sum() == len(inside)


def test_all_ranks_lie_on_one_clock(job):
    real, artefacts = job
    table = views.ranks_timeline(artefacts, bins=50)
    assert (table[list(views.PARTS)].sum(axis=1) == table["dur_ns"]).all()
    for rank, rows in table.groupby("rank"):
        computing = sum(end - start for start, end, kind in real[rank].work if kind == "compute")
        assert rows["compute_ns"].sum() == computing
    assert views.axis(artefacts)["shift_ns"].tolist() == [0, 0, 0]
    late = views.lateness(artefacts, limit=1)
    assert late.set_index("rank")["wait_ns"].to_dict() == {0: 5_000_000, 1: 0, 2: 5_000_000}


def test_many_ranks_fold_around_those_that_differ(job):
    _, artefacts = job
    table = views.ranks_timeline(artefacts, bins=10, rows=2)
    assert sorted(set(table["ranks"])) == ["0, 2", "1"]
    assert (table[list(views.PARTS)].sum(axis=1) == table["dur_ns"]).all()


def test_the_tree_of_user_functions_has_none_of_libraries():
    """Calls inside a library belong to the user's function around them."""
    [*_, artefact] = discover(Path(__file__).parents[2] / "fixtures" / "traces" / "allocating").of(Kind.TRACE)
    own, every = (views.tree(artefact, by=by) for by in ("user_function", "function"))
    assert len(every) > 5 * len(own)
    assert all(is_user_function(name) for name in own["name"])
    names = own.set_index("node")["name"]
    step = own[own["name"] == "allocating_job.py(39): step"].iloc[0]
    assert names[step["parent"]] == "allocating_job.py(58): main"
    assert step["host_ns"] == every[every["name"] == step["name"]]["host_ns"].sum()
    assert step["own_ns"] > every[every["name"] == step["name"]]["own_ns"].sum()


def test_the_tree_of_operators_adds_up(job):
    real, artefacts = job
    table = views.tree(artefacts[0])
    linear = table[table["name"] == "aten::linear"].iloc[0]
    below = table[table["parent"] == linear["node"]]
    assert below["name"].tolist() == ["aten::mm"]
    assert linear["device_ns"] == below["device_ns"].sum() > 0
    assert linear["own_ns"] == linear["host_ns"] - below["host_ns"].sum()
    assert table[table["parent"] < 0]["device_ns"].sum() == sum(end - start for start, end, _ in real[0].work)
