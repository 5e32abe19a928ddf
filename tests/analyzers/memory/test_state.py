"""Segments, pools and blocks at any entry, against a record kept while the entries were made."""

import random

import pytest

from analyzers import memory
from analyzers.memory import views

MIB = 1 << 20


def joined(ranges):
    found = []
    for address, size in sorted(ranges.items()):
        if found and sum(found[-1]) == address:
            found[-1] = (found[-1][0], found[-1][1] + size)
        else:
            found.append((address, size))
    return found


def segment_of(address, size, pool=(0, 0), stream=0, blocks=()):
    return {
        "device": 0, "address": address, "total_size": size, "stream": stream, "segment_type": "large",
        "segment_pool_id": pool, "is_expandable": False, "blocks": list(blocks),
    }  # fmt: skip


def growing_and_shrinking(maker, seed):
    """A trace of segment events, and the joined ranges after each."""
    dice, made, ranges, history = random.Random(seed), maker.Recording(), {}, []
    for _ in range(60):
        if ranges and dice.random() < 0.4:
            address = dice.choice(sorted(ranges))
            size = ranges.pop(address)
            made.write(dice.choice(["segment_free", "segment_unmap"]), address, size, [])
        else:
            address = dice.choice([a for a in range(1, 40) if a * MIB not in ranges]) * MIB
            ranges[address] = MIB
            made.write(dice.choice(["segment_alloc", "segment_map"]), address, MIB, [])
        history.append(joined(ranges))
    return {
        "segments": [segment_of(address, size) for address, size in ranges.items()],
        "device_traces": [made.entries],
    }, history


@pytest.mark.parametrize("seed", range(6))
def test_segments_and_reserved_bytes_at_every_entry(maker, seed):
    snapshot, history = growing_and_shrinking(maker, seed)
    artefact = maker.save(snapshot)
    for entry, expected in enumerate(history):
        assert list(views.segments(artefact, entry).itertuples(index=False, name=None)) == expected
    table = views.timeline(artefact, buckets=1000)
    expected = [sum(size for _, size in ranges) for ranges in history]
    assert table["reserved"].tolist() == expected
    assert memory.analyze([artefact]).data.devices[0].peak_reserved_bytes == max(expected)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_at_every_entry(maker, seed):
    snapshot = maker.wander(seed, 60).snapshot()
    artefact, trace = maker.save(snapshot), snapshot["device_traces"][0]
    live, asked = {}, set()
    first = {}
    for event in trace:
        first.setdefault(event["addr"], event)
    live |= {e["addr"]: e["size"] for e in first.values() if e["action"] == "free_requested"}
    live |= {
        b["address"]: b["requested_size"]
        for b in snapshot["segments"][0]["blocks"]
        if b["state"] != "inactive" and b["address"] not in first
    }
    for entry, event in enumerate(trace):
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
        elif event["action"] == "free_requested":
            asked.add(event["addr"])
        else:
            asked.discard(event["addr"])
            del live[event["addr"]]
        table = views.state(artefact, entry)
        assert dict(zip(table["address"], table["requested"], strict=True)) == live
        assert set(table.loc[table["state"] == "pending_free", "address"]) == asked
        assert (table["segment"] == snapshot["segments"][0]["address"]).all()


def test_the_life_of_an_address(maker):
    made = maker.Recording()
    older = made.older(4096, [maker.frame("first")])
    made.free(older, [maker.frame("drop")])
    again = made.alloc(1000, [maker.frame("second")])
    assert again == older
    table = views.life(maker.save(made.snapshot()), older + 500)
    assert table["born"].tolist() == [-1, 2]
    assert table["died"].tolist() == [1, 3]
    assert table["freed_stack"].tolist() == [True, False]
    assert [frames[0].split()[-1] for frames in table["frames"]] == ["drop", "second"]
    assert len(views.life(maker.save(made.snapshot()), older + 2000)) == 1


def block(address, size, active):
    state = "active_allocated" if active else "inactive"
    return {"address": address, "size": size, "requested_size": size if active else 0, "state": state, "frames": []}


@pytest.fixture
def crowded(maker):
    """Two streams and a private pool that nothing uses any more; one allocation had to wait for cached segments."""
    made, site = maker.Recording(), [maker.frame("work", line=3)]
    for address, size, stream in ((MIB, 600 * MIB, 0), (1 << 40, 100 * MIB, 7)):
        made.write("alloc", address, size, site, stream=stream)
    made.write("alloc", 2 << 40, 300 * MIB, site)
    for action in ("free_requested", "free_completed"):
        made.write(action, 2 << 40, 300 * MIB, site)
    made.write("segment_free", 5 << 40, 30 * MIB, site)
    made.write("segment_free", 6 << 40, 20 * MIB, site)
    made.write("segment_alloc", 3 << 40, 40 * MIB, site)
    segments = [
        segment_of(MIB, 700 * MIB, blocks=[block(MIB, 600 * MIB, True), block(601 * MIB, 100 * MIB, False)]),
        segment_of(1 << 40, 100 * MIB, stream=7, blocks=[block(1 << 40, 100 * MIB, True)]),
        segment_of(2 << 40, 300 * MIB, pool=(3, 0), blocks=[block(2 << 40, 300 * MIB, False)]),
        segment_of(3 << 40, 40 * MIB, blocks=[block(3 << 40, 40 * MIB, False)]),
    ]
    return maker.save({"segments": segments, "device_traces": [made.entries]})


def test_pools_streams_and_retries(crowded):
    report = memory.analyze([crowded])
    [device] = report.data.devices
    assert [(p.pool, p.stream, p.reserved_bytes // MIB, p.allocated_bytes // MIB, p.peak_bytes // MIB)
            for p in device.pools] == [
        ("0.0", 0, 740, 600, 600),
        ("3.0", 0, 300, 0, 300),
        ("0.0", 7, 100, 100, 100),
    ]  # fmt: skip
    assert [(retry.index, retry.freed_bytes // MIB) for retry in device.retries] == [(7, 50)]
    found = {finding.id: finding for finding in report.findings}
    assert "3.0" in found["memory.dead_pool"].why
    assert "300.0 MiB" in found["memory.dead_pool"].title
    assert found["memory.retries"].evidence[0].text.startswith("50.0 MiB")
    assert "memory.reserved" in found
