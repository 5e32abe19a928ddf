"""The critical path adds up, and its prediction for a faster kernel equals a new simulation."""

import io
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

from analyzers import traces
from analyzers.columns import UnsavedColumns
from analyzers.run import Kind, discover
from analyzers.traces import digest, views
from analyzers.traces.critical_path import critical_path, path_sums
from analyzers.traces.reading.trace import Trace

SIMULATED = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[4] / "benchmarks" / "traced_job.py")))
Op, Collective, Host = SIMULATED.Op, SIMULATED.Collective, SIMULATED.Host
US = 1_000


def job(folder, parts):
    [rank] = SIMULATED.job(folder, 1, 2, parts)
    return rank, Trace(UnsavedColumns(*digest.read([folder / "rank0_trace.json.gz"])))


def length(parts, change=lambda part: part):
    rank = SIMULATED.Rank(0, 1, io.StringIO())
    SIMULATED.simulate([rank], 2, [change(part) for part in parts])
    return rank.host - SIMULATED.BEGIN_NS


def faster(part, kernel):
    return Op(part.name, part.kernel, part.ns // 2) if getattr(part, "kernel", "") == kernel else part


BUSY = [Op("aten::mm", "gemm", 300 * US), Op("aten::sum", "reduce", 200 * US)] * 20
STARVED = [Host("tokenize", 500 * US), Op("aten::mm", "gemm", 20 * US), Op("aten::sum", "reduce", 10 * US)] * 20
WAITING = [Op("aten::mm", "gemm", 50 * US), Collective("allreduce", 9, 400 * US)] * 20


def saved_by_half(path, name):
    """How much shorter the path says that the step is if the pieces of this name take half their time."""
    return sum(part.saved_ns for part in path_sums(path, None, None, None) if part.name == name)


@pytest.mark.parametrize("parts", [BUSY, STARVED, WAITING, SIMULATED.llama(layers=2)])
def test_the_pieces_tile_the_window(tmp_path, parts):
    rank, trace = job(tmp_path, parts)
    path = critical_path(trace)
    assert path["dur_ns"].sum() == max(end for _, end, _ in rank.work) - SIMULATED.BEGIN_NS
    assert (path["start_ns"].iloc[1:].to_numpy() == (path["start_ns"] + path["dur_ns"]).iloc[:-1].to_numpy()).all()


@pytest.mark.parametrize(
    ("parts", "kernel", "saves"), [(BUSY, "gemm", True), (BUSY, "reduce", True), (STARVED, "gemm", False)]
)
def test_a_faster_kernel_saves_what_the_path_says(tmp_path, parts, kernel, saves):
    _, trace = job(tmp_path, parts)
    promised = saved_by_half(critical_path(trace), kernel)
    saved = length(parts) - length(parts, lambda part: faster(part, kernel))
    assert promised == pytest.approx(saved, rel=0.01) if saves else promised <= 2 * 20 * US
    assert promised >= saved


def test_a_starved_device_leaves_the_path_to_the_host(tmp_path):
    _, trace = job(tmp_path, STARVED)
    path = critical_path(trace)
    assert path.groupby("kind")["dur_ns"].sum()["host"] > 0.9 * path["dur_ns"].sum()


def test_one_step_of_a_file(tmp_path):
    job(tmp_path, BUSY)
    [artefact] = discover(tmp_path).of(Kind.TRACE)
    [account] = traces.analyze([artefact]).data.ranks
    assert views.critical_path(artefact, step=2)["dur_ns"].sum() == account.step_times[1].dur_ns
