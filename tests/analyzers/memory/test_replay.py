"""Start, peak and end of allocated memory, compared with a plain loop over the entries."""

import copy
import gzip
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers import memory, store
from analyzers.columns import UnsavedColumns
from analyzers.memory import views
from analyzers.memory.lifetimes import Replay
from analyzers.memory.reading.interning import IncrementalReader, InternTables
from analyzers.memory.reading.reader import columns, trace_columns
from analyzers.memory.snapshot import Snapshot
from analyzers.words import size

RELAXED = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def replay(snapshot, device=0):
    known = InternTables()
    harvest = IncrementalReader(lambda entries: trace_columns(entries, known))
    return Replay(Snapshot(UnsavedColumns(*columns(copy.deepcopy(snapshot), known, harvest))).device(device))


def numbers(one):
    return (one.start, *one.peak, one.end, one.active_bytes)


@RELAXED
@given(seed=st.integers(0, 10_000), count=st.integers(0, 120))
def test_agrees_with_the_oracle(maker, oracle, seed, count):
    snapshot = maker.wander(seed, count).snapshot()
    found = replay(snapshot)
    assert numbers(found) == oracle(snapshot, 0)
    assert found.consistent


@RELAXED
@given(seed=st.integers(0, 10_000), cut=st.integers(0, 500))
def test_losing_the_first_entries_changes_nothing_that_comes_later(maker, seed, cut):
    snapshot = maker.wander(seed, 100).snapshot()
    whole = replay(snapshot)
    cut = min(cut, len(whole.live_bytes))
    rest = replay(snapshot | {"device_traces": [snapshot["device_traces"][0][cut:]]})
    assert rest.consistent
    assert np.array_equal(rest.live_bytes, whole.live_bytes[cut:])


@RELAXED
@given(seed=st.integers(0, 10_000))
def test_devices_may_come_in_any_order(maker, seed):
    first, second = maker.wander(seed, 60), maker.wander(seed + 1, 60, device=1)
    both = {"segments": [first.segment(), second.segment()], "device_traces": [first.entries, second.entries]}
    swapped = {
        "segments": [second.segment() | {"device": 0}, first.segment() | {"device": 1}],
        "device_traces": [second.entries, first.entries],
    }
    assert numbers(replay(both, 0)) == numbers(replay(swapped, 1))
    assert numbers(replay(both, 1)) == numbers(replay(swapped, 0))


def test_a_lost_alloc_is_told(maker):
    snapshot = maker.wander(3).snapshot()
    alive = {b["address"] for b in snapshot["segments"][0]["blocks"] if b["state"] != "inactive"}
    lost = next(e for e in reversed(snapshot["device_traces"][0]) if e.get("addr") in alive and e["action"] == "alloc")
    for one in snapshot["segments"][0]["blocks"]:
        if one["address"] == lost["addr"]:
            one["state"] = "inactive"
    report = memory.analyze([maker.save(snapshot)])
    assert not report.data.devices[0].consistent
    [finding] = [finding for finding in report.findings if finding.id == "memory.inconsistent"]
    device = report.data.devices[0]
    assert device.end_allocated_bytes - device.listed_bytes == lost["size"]
    assert "but the list of blocks in the same file" in finding.why
    assert "so sizes over time are approximate" in finding.title
    assert finding.evidence[0].text.endswith(f"; difference: {size(lost['size'])}")


def test_a_peak_that_no_segment_could_hold_is_told(maker):
    """All blocks are freed at the end, so that only the segments contradict the history."""
    alloc = {"addr": 1 << 40, "size": 64 << 20, "stream": 0, "frames": [], "time_us": 1}
    entries = [
        {"action": "alloc", **alloc},
        {"action": "free_requested", **alloc},
        {"action": "free_completed", **alloc},
    ]
    snapshot = maker.wander(3).snapshot()
    [segment] = snapshot["segments"]
    for block in segment["blocks"]:
        block["state"] = "inactive"

    def told(total_size):
        grown = segment | {"total_size": total_size}
        report = memory.analyze([maker.save({"segments": [grown], "device_traces": [entries]})])
        return [finding.why for finding in report.findings if finding.id == "memory.inconsistent"]

    [why] = told(32 << 20)
    assert "peaks at 64.0 MiB allocated" in why
    assert told(64 << 20) == []


def test_timeline_rows_are_instants_that_were(maker):
    artefact = maker.save(maker.wander(7, 400).snapshot())
    table = views.timeline(artefact, buckets=20)
    live = replay(pickle.loads(artefact.path.read_bytes())).live_bytes
    assert len(table) == 20
    assert (table["allocated"] == live[table["entry"]]).all()
    assert table["allocated"].max() == live.max()
    assert (table[list(memory.CATEGORIES)].sum(axis=1) == table["allocated"]).all()
    assert len(views.timeline(artefact, window=(10, 14))) == 4


def reserved_by_steps(snapshot, device):
    """Return the reserved bytes after each entry, computed backwards from the segments at the end."""
    segments = snapshot if isinstance(snapshot, list) else snapshot["segments"]
    traces = [] if isinstance(snapshot, list) else snapshot.get("device_traces", [])
    now = sum(segment["total_size"] for segment in segments if segment["device"] == device)
    found = []
    for entry in reversed(traces[device] if device < len(traces) else []):
        found.append(now)
        if entry["action"] in ("segment_alloc", "segment_map"):
            now -= entry["size"]
        elif entry["action"] in ("segment_free", "segment_unmap"):
            now += entry["size"]
    return found[::-1]


FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_what_our_trainer_recorded_agrees_with_the_oracle(maker, oracle):
    paths = sorted(FIXTURES.glob("*/memory_snapshot/*/*.pickle.gz"))
    assert len(paths) >= 8
    for path in paths:
        snapshot = pickle.loads(gzip.decompress(path.read_bytes()))
        [device] = memory.analyze([maker.artefact(path)]).data.devices
        found = (device.start_allocated_bytes, device.peak_allocated_bytes, device.peak_index)
        expected = oracle(snapshot, 0)
        assert (*found, device.end_allocated_bytes) == expected[:4], path
        assert device.consistent == (expected[3] == expected[4])
        assert device.missing == ([] if device.consistent else device.missing[-1:])


@pytest.mark.real
def test_reserved_bytes_of_real_files_agree_with_the_oracle(real_snapshots):
    for artefact in real_snapshots:
        snapshot = pickle.loads(artefact.path.read_bytes())
        for device in memory.analyze([artefact]).data.devices:
            expected = reserved_by_steps(snapshot, device.device) or [device.reserved_bytes]
            table = views.timeline(artefact, device=device.device, buckets=1 << 20)
            assert table["reserved"].tolist() == expected
            assert device.peak_reserved_bytes == max(expected)


@pytest.mark.real
def test_real_files_agree_with_the_oracle(real_snapshots, oracle):
    assert real_snapshots
    for artefact in real_snapshots:
        snapshot = pickle.loads(artefact.path.read_bytes())
        for device in memory.analyze([artefact], store.Options()).data.devices:
            found = (device.start_allocated_bytes, device.peak_allocated_bytes, device.peak_index)
            expected = oracle(snapshot, device.device)
            assert (*found, device.end_allocated_bytes) == expected[:4], artefact.path.name
            assert device.consistent == (expected[3] == expected[4])
            assert sum(device.categories.values()) == device.peak_allocated_bytes
            table = views.timeline(artefact, device=device.device)
            assert table["allocated"].max() <= device.peak_allocated_bytes
