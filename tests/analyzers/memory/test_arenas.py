"""Streams, pools, entries, reserved ranges and search, compared with the state that the simulated allocator had."""

import pickle
import random
from collections import defaultdict

import numpy as np
import pytest

from analyzers import memory
from analyzers.errors import InputError
from analyzers.memory import views
from analyzers.memory.model import MissingEvidence

MIB = 1 << 20
STREAMS, POOLS = (0, 7), ((0, 0), (3, 0), (0, 2))


def block(address, size, active):
    state = "active_allocated" if active else "inactive"
    return {"address": address, "size": size, "requested_size": size if active else 0, "state": state, "frames": []}


def segment(address, size, stream, pool, blocks=(), **more):
    return {
        "device": 0, "address": address, "total_size": size, "stream": stream, "segment_type": "large",
        "segment_pool_id": pool, "is_expandable": False, "blocks": list(blocks),
    } | more  # fmt: skip


def history(maker, seed, told=True):
    """Return a trace over several streams and pools with a segment each, and the bytes in each after every entry."""
    dice, made = random.Random(seed), maker.Recording()
    places = [(stream, pool) for stream in STREAMS for pool in POOLS]
    base = {place: (number + 1) << 32 for number, place in enumerate(places)}
    live = {}
    for place in places:
        live |= {base[place] + k * MIB: dice.randrange(1, MIB) for k in range(dice.randrange(3))}
    owner = {at: place for place in places for at in range(base[place], base[place] + 9 * MIB, MIB)}
    held = [totals(live, owner)]
    for _ in range(80):
        if live and dice.random() < 0.5:
            at = dice.choice(sorted(live))
            action, size = "free_completed", live.pop(at)
        else:
            at = dice.choice(sorted(set(owner) - set(live)))
            action, size = "alloc", dice.randrange(1, MIB)
            live[at] = size
        stream, pool = owner[at]
        made.write(action, at, size, [], stream=stream, **({"pool_id": pool} if told else {}))
        held.append(totals(live, owner))
    segments = [
        segment(base[p], 9 * MIB, *p, blocks=[block(at, live[at], True) for at in sorted(live) if owner[at] == p])
        for p in places
    ]
    return {"segments": segments, "device_traces": [made.entries]}, held


def totals(live, owner):
    found = defaultdict(int)
    for at, size in live.items():
        found[owner[at]] += size
    return found


@pytest.mark.parametrize("told", [True, False], ids=["pool_id in the entries", "told by the segments"])
@pytest.mark.parametrize("seed", range(4))
def test_what_each_stream_and_pool_held(maker, seed, told):
    snapshot, held = history(maker, seed, told)
    artefact = maker.save(snapshot)
    [device] = memory.analyze([artefact]).data.devices
    for pool in device.pools:
        series = [now[pool.stream, tuple(map(int, pool.pool.split(".")))] for now in held]
        assert (pool.start_bytes, pool.end_bytes) == (series[0], series[-1])
        assert (pool.peak_bytes, pool.peak_index) == (max(series), series.index(max(series)) - 1)
    for use in device.streams:
        series = [sum(size for (stream, _), size in now.items() if stream == use.stream) for now in held]
        assert (use.start_bytes, use.peak_bytes, use.end_bytes) == (series[0], max(series), series[-1])
        assert use.peak_index == series.index(max(series)) - 1
    assert sum(use.start_bytes for use in device.streams) == device.start_allocated_bytes
    for by in ("pool", "stream"):
        table = views.timeline_by(artefact, by=by, buckets=1000)
        assert (table.drop(columns=["entry", "time_us", "allocated"]).sum(axis=1) == table["allocated"]).all()


def test_a_pool_that_no_file_tells_is_not_made_up(maker):
    snapshot, _ = history(maker, 1, told=False)
    without_the_first = snapshot | {"segments": snapshot["segments"][1:]}
    [device] = memory.analyze([maker.save(without_the_first)]).data.devices
    assert "?" in {pool.pool for pool in device.pools}
    with pytest.raises(InputError, match="cannot place by colour"):
        views.timeline_by(maker.save(snapshot), by="colour")


def test_a_file_that_names_a_thousand_streams_is_still_answered(maker):
    made = maker.Recording()
    for stream in range(1000):
        made.write("alloc", (stream + 1) << 20, 1000 + stream, [], stream=stream)
    artefact = maker.save({"segments": [], "device_traces": [made.entries]})
    [device] = memory.analyze([artefact]).data.devices
    assert [use.stream for use in device.streams] == list(range(999, 967, -1))
    table = views.timeline_by(artefact, by="stream", buckets=1000)
    assert (table.drop(columns=["entry", "time_us", "allocated"]).sum(axis=1) == table["allocated"]).all()
    assert table["others"].iloc[-1] == sum(1000 + stream for stream in range(968))


def test_entries_as_they_were_written(maker):
    snapshot, _ = history(maker, 2)
    trace = snapshot["device_traces"][0]
    table = views.events(maker.save(snapshot), first=10, count=30)
    assert table["entry"].tolist() == list(range(10, 40))
    for row, entry in zip(table.itertuples(), trace[10:40], strict=True):
        assert (row.action, row.address, row.bytes) == (entry["action"], entry["addr"], entry["size"])
        assert (row.stream, row.pool) == (entry["stream"], "{}.{}".format(*entry["pool_id"]))
    assert len(views.events(maker.save(snapshot), first=70, count=50)) == 10


def test_entries_that_fit_a_text(maker):
    snapshot, _ = history(maker, 2)
    artefact, trace = maker.save(snapshot), snapshot["device_traces"][0]
    named = views.events(artefact, count=1000, text="Segment_")
    assert named["entry"].tolist() == [n for n, e in enumerate(trace) if e["action"].startswith("segment_")]
    first = next(e for e in trace if e["action"] == "alloc" and e["size"])
    around = views.events(artefact, count=1000, text=hex(first["addr"]))
    expected = {
        n for n, e in enumerate(trace) if e["addr"] == first["addr"] and e["action"] in ("alloc", "free_completed")
    }
    assert expected <= set(around["entry"])
    assert set(around["action"]) <= {"alloc", "free_completed"}


@pytest.mark.parametrize("seed", range(5))
def test_reserved_ranges_cover_what_was_reserved(maker, seed):
    """Pages of an expandable segment are mapped and unmapped one by one, and several at once."""
    dice, made, pages, history = random.Random(seed), maker.Recording(), {0, 1}, [{0, 1}]
    for _ in range(60):
        first, count = dice.randrange(30), dice.randrange(1, 4)
        wanted = set(range(first, first + count))
        if wanted <= pages:
            pages -= wanted
            made.write("segment_unmap", (1000 + first) * MIB, count * MIB, [])
        elif not wanted & pages:
            pages |= wanted
            made.write("segment_map", (1000 + first) * MIB, count * MIB, [])
        else:
            made.write("snapshot", 0, 0, [])
        history.append(set(pages))
    segments = [segment((1000 + page) * MIB, MIB, 7, (0, 2), is_expandable=True) for page in sorted(pages)]
    artefact = maker.save({"segments": segments, "device_traces": [made.entries]})
    table = views.reserved_ranges(artefact, limit=10_000)
    for entry, expected in enumerate(history, start=-1):
        there = table[(table["born"] <= entry) & (table["died"] > entry)]
        found = [at // MIB - 1000 + k for at, size in zip(there["address"], there["bytes"], strict=True)
                 for k in range(size // MIB)]  # fmt: skip
        assert sorted(found) == sorted(expected)
    last = table[table["died"] == len(made.entries)]
    assert last["expandable"].all()
    assert set(last["pool"]) <= {"0.2"}
    assert len(views.reserved_ranges(artefact, window=(0, 1), limit=10_000)) <= len(table)


def test_searching(maker):
    artefact = maker.save(maker.wander(4, 200).snapshot())
    trace = pickle.loads(artefact.path.read_bytes())["device_traces"][0]
    allocs = [entry for entry in trace if entry["action"] == "alloc"]
    by_frame = views.search(artefact, "F3", limit=1000)
    assert sorted(by_frame["requested"]) == sorted(e["size"] for e in allocs if e["frames"][0]["name"] == "f3")
    large = views.search(artefact, ">=8000", limit=1000)
    assert set(large["requested"]) >= {entry["size"] for entry in allocs if entry["size"] >= 8000}
    assert large["requested"].min() >= 8000
    assert large["requested"].is_monotonic_decreasing
    one = allocs[5]
    held = views.search(artefact, hex(one["addr"] + one["size"] - 1))
    assert one["size"] in set(held["requested"])
    assert views.search(artefact, "no such thing").empty
    assert len(views.search(artefact, "train.py", limit=7)) == 7


def test_what_waits_for_a_stream_is_pending(maker):
    made = maker.Recording()
    first, second = made.alloc(1000), made.alloc(500)
    made.write("free_requested", first, 1000, [])
    made.write("free_requested", second, 500, [])
    made.write("free_completed", first, 1000, [])
    del made.live[first]
    snapshot = made.snapshot()
    next(b for b in snapshot["segments"][0]["blocks"] if b["address"] == second)["state"] = "active_awaiting_free"
    table = views.timeline(maker.save(snapshot))
    assert table["pending"].tolist() == [0, 0, 1000, 1500, 500]
    assert table["allocated"].tolist() == [1000, 1500, 1500, 1500, 500]


def test_settings_and_what_is_lacking(maker):
    snapshot = maker.wander(4, 50).snapshot()
    snapshot["allocator_settings"] = {"expandable_segments": True, "roundup_power2_divisions": {"1": 0, "2": 4}}
    snapshot["trace_alloc_overflowed"] = [True]
    artefact = maker.save(snapshot)
    assert views.settings(artefact).to_numpy().tolist() == [
        ["expandable_segments", "True"],
        ["roundup_power2_divisions.1", "0"],
        ["roundup_power2_divisions.2", "4"],
    ]
    [device] = memory.analyze([artefact]).data.devices
    assert any(what == MissingEvidence.OLDEST_ENTRIES for what in device.missing)
    [bare] = memory.analyze([maker.save(snapshot["segments"], "b.pickle")]).data.devices
    assert any(what == MissingEvidence.HISTORY for what in bare.missing)


@pytest.mark.real
def test_streams_of_real_files_add_up(real_snapshots):
    for artefact in real_snapshots:
        for device in memory.analyze([artefact]).data.devices:
            assert sum(use.start_bytes for use in device.streams) == device.start_allocated_bytes
            assert sum(pool.end_bytes for pool in device.pools) == device.end_allocated_bytes
            table = views.timeline_by(artefact, device=device.device, by="pool")
            parts = table.drop(columns=["entry", "time_us", "allocated"]).to_numpy().sum(axis=1)
            assert np.array_equal(parts, table["allocated"])
