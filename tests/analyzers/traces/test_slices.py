"""The slices of a timeline: no event is lost, joined ones keep their sums, and each line is in order of time."""

import runpy
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from analyzers.run import Kind, discover
from analyzers.traces import views
from analyzers.traces.loading import open_trace
from analyzers.traces.reading.trace import DEVICE_LANE, HOST_LANE, Lane
from analyzers.traces.slices import KINDS, event, lane_titles, path_slices, slices

SIMULATED = SimpleNamespace(**runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "traced_job.py")))


@pytest.fixture(scope="module")
def artefact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    SIMULATED.job(folder, 1, 3, SIMULATED.llama(layers=2))
    return discover(folder).of(Kind.TRACE)[0]


def sums(found, column):
    """Return, for each line, the summed duration of each value of the column."""
    codes, dur = getattr(found, column), found.dur
    return [
        np.bincount(codes[line.first : line.last], dur[line.first : line.last], 32).tolist() for line in found.lines
    ]


def test_each_event_is_a_slice_of_its_line(artefact):
    trace = open_trace(artefact.path)
    found = slices(artefact)
    assert sorted(found.row.tolist()) == list(range(len(trace.columns["start"])))
    assert (found.start == trace.columns["start"][found.row] - trace.origin).all()
    assert [found.names[i] for i in found.name] == [trace.names[i] for i in trace.columns["name"][found.row]]
    assert found.lines[0].on_device
    assert not found.lines[-1].on_device
    for line in found.lines:
        rows = found.row[line.first : line.last]
        assert set(trace.columns["depth"][rows].tolist()) == {line.depth}
        assert (np.diff(found.start[line.first : line.last]) >= 0).all()


@pytest.mark.parametrize("most", [500, 200, 60])
def test_joined_slices_keep_the_time_of_each_kind_and_phase(artefact, most):
    exact, joined = slices(artefact), slices(artefact, None, None, most)
    assert len(joined.start) <= most < len(exact.start)
    assert joined.count.sum() == joined.events == len(exact.start)
    assert joined.joined_ns > 0
    assert [(line.lane, line.depth) for line in joined.lines] == [(line.lane, line.depth) for line in exact.lines]
    assert (sums(joined, "kind"), sums(joined, "phase")) == (sums(exact, "kind"), sums(exact, "phase"))
    for line in joined.lines:
        start, end = (column[line.first : line.last] for column in (joined.start, joined.start + joined.dur))
        assert (start[1:] >= end[:-1]).all()


def test_a_window_holds_the_events_that_touch_it(artefact):
    exact, window = slices(artefact), (2_000_000, 3_000_000)
    found = slices(artefact, None, window)
    inside = (exact.start < window[1]) & (exact.start + exact.dur > window[0])
    assert sorted(found.row.tolist()) == sorted(exact.row[inside].tolist())


def test_the_phase_of_a_kernel_is_that_of_its_launch(artefact):
    found = slices(artefact)
    rows = found.row[: found.lines[0].last]
    assert [views.PHASES[code] for code in found.phase[: len(rows)]] == views.phases(artefact, rows)


def test_an_event_says_what_it_is(artefact):
    trace, found = open_trace(artefact.path), slices(artefact)
    outer = found.row[next(line for line in found.lines if not line.on_device).first]
    details = event(artefact, int(outer))
    inside = np.flatnonzero(trace.columns["parent"] == outer)
    assert details.dur_ns - details.self_ns == (trace.columns["end"][inside] - trace.columns["start"][inside]).sum() > 0
    assert (details.depth, details.kind, details.name) == (0, "", trace.names[trace.columns["name"][outer]])
    assert event(artefact, -1) is event(artefact, 10**9) is None


def test_titles_of_lanes_differ():
    """Streams of two devices, a thread of two processes, and a file that says the same of two lanes."""
    kinds = [(DEVICE_LANE, 0), (DEVICE_LANE, 1), (HOST_LANE, 9), (HOST_LANE, 9)]
    lanes = [Lane(kind=kind, pid=pid, tid=7, name="stream 7") for kind, pid in kinds]
    alone = Lane(kind=HOST_LANE, pid=9, tid=4, name="x" * 1000)
    assert lane_titles([*lanes, alone]) == [
        "stream 7, device 0",
        "stream 7, device 1",
        "stream 7, process 9",
        "stream 7, process 9 (2)",
        "x" * 200,
    ]


def test_a_critical_path_is_one_line_without_gaps(artefact):
    path = views.critical_path(artefact)
    found = path_slices(path)
    assert (found.start[1:] == (found.start + found.dur)[:-1]).all()
    assert {KINDS[code] for code in found.kind} <= set(KINDS)
    assert found.dur.sum() == path["dur_ns"].sum()
