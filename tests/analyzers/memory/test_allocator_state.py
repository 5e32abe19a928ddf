"""Segments, pools and blocks after any entry, compared with the state that the simulated allocator had."""

import random

import numpy as np
import pytest

from analyzers import memory
from analyzers.memory import views
from analyzers.memory.allocator_state import free_ranges
from analyzers.memory.loading import open_replay

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
    """Return a trace of segment events, and the merged address ranges after each event."""
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
        table = views.live_blocks(artefact, entry)
        assert dict(zip(table["address"], table["requested"], strict=True)) == live
        assert set(table.loc[table["state"] == "pending_free", "address"]) == asked
        assert (table["segment"] == snapshot["segments"][0]["address"]).all()


def test_the_life_of_an_address(maker):
    made = maker.Recording()
    older = made.older(4096, [maker.frame("first")])
    made.free(older, [maker.frame("drop")])
    again = made.alloc(1000, [maker.frame("second")])
    assert again == older
    table = views.blocks_of_address(maker.save(made.snapshot()), older + 500)
    assert table["born"].tolist() == [-1, 2]
    assert table["died"].tolist() == [1, 3]
    assert table["freed_stack"].tolist() == [True, False]
    assert [frames[0].split()[-1] for frames in table["frames"]] == ["drop", "second"]
    assert len(views.blocks_of_address(maker.save(made.snapshot()), older + 2000)) == 1


def block(address, size, active):
    state = "active_allocated" if active else "inactive"
    return {"address": address, "size": size, "requested_size": size if active else 0, "state": state, "frames": []}


@pytest.fixture
def crowded(maker):
    """Return a snapshot with two streams and an unused private pool, in which an allocation waited for cached
    segments.
    """
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
    assert "in private pool (3, 0). Private" in found["memory.dead_pool"].why
    assert "torch.cuda.empty_cache(): until then the 300.0 MiB stay reserved" in found["memory.dead_pool"].next
    assert "300.0 MiB" in found["memory.dead_pool"].title
    assert found["memory.retries"].evidence[0].text.endswith(": 50.0 MiB given back to the driver")
    # Only fully unused segments are given back, and no setting does so by itself.
    assert "but not the 100.0 MiB in segments that also hold tensors" in found["memory.reserved"].next
    assert "garbage_collection_threshold" not in found["memory.reserved"].next


UNIT = 512


@pytest.mark.parametrize("seed", range(4))
def test_what_is_free_at_every_entry(maker, seed):
    """The free memory is compared with a map of units, into which segments and blocks are entered one by one."""
    dice, made = random.Random(seed), maker.Recording()
    segments, live, history = {}, {}, []
    for _ in range(80):
        empty = [s for s in segments if not any(s <= a < s + segments[s] for a in live)]
        choice = dice.random()
        if choice < 0.15 or not segments:
            address = dice.choice([k * 16 * UNIT for k in range(1, 30) if k * 16 * UNIT not in segments])
            segments[address] = 16 * UNIT
            made.write("segment_alloc", address, 16 * UNIT, [])
        elif choice < 0.25 and empty:
            address = dice.choice(empty)
            made.write("segment_free", address, segments.pop(address), [])
        elif choice < 0.5 and live:
            address = dice.choice(sorted(live))
            made.write("free_completed", address, live.pop(address), [])
        else:
            taken = {a + k * UNIT for a, size in live.items() for k in range(-(-size // UNIT))}
            units = [s + k * UNIT for s, n in segments.items() for k in range(n // UNIT)]
            address = dice.choice([unit for unit in units if unit not in taken] or [None])
            if address is not None:
                live[address] = dice.randrange(1, UNIT + 1)
                made.write("alloc", address, live[address], [])
        while len(history) < len(made.entries):
            history.append((dict(segments), dict(live)))
    blocks = {s: [block(a, UNIT, True) | {"requested_size": n} for a, n in sorted(live.items()) if s <= a < s + size]
              for s, size in segments.items()}  # fmt: skip
    snapshot = {
        "segments": [segment_of(s, size, blocks=blocks[s]) for s, size in segments.items()],
        "device_traces": [made.entries],
    }
    replay = open_replay(maker.save(snapshot))
    for entry in range(0, len(history), 5):
        table = free_ranges(replay, entry)
        found = {at + k * UNIT for at, size in zip(table["address"], table["bytes"], strict=True)
                 for k in range(size // UNIT)}  # fmt: skip
        reserved, held = history[entry]
        units = {s + k * UNIT for s, size in reserved.items() for k in range(size // UNIT)}
        assert found == units - held.keys()
        assert all(s in reserved for s in table["segment"])
        assert (np.diff(table["bytes"]) <= 0).all()


def test_free_pieces_by_pool_and_segment_against_the_request(maker):
    made = maker.Recording()
    made.alloc(MIB)
    made.oom(60 * MIB, MIB, [maker.frame("forward")])
    tiles = {MIB: (10, 30, 10, 20), 1 << 40: (5, 40), 2 << 40: (0, 50)}
    segments = []
    for (base, sizes), (pool, stream) in zip(tiles.items(), [((0, 0), 0), ((0, 0), 7), ((3, 0), 0)], strict=True):
        at, blocks = base, []
        for number, size in enumerate(sizes):
            blocks += [block(at, size * MIB, number % 2 == 0)] if size else []
            at += size * MIB
        segments.append(segment_of(base, at - base, pool, stream, blocks))
    report = memory.analyze([maker.save({"segments": segments, "device_traces": [made.entries]})])
    found = report.data.devices[0].fragmentation
    assert [(p.pool, p.stream, p.count, p.free_bytes // MIB, p.split_bytes // MIB, p.largest_bytes // MIB)
            for p in found.pools] == [
        ("0.0", 0, 2, 50, 50, 30), ("3.0", 0, 1, 50, 0, 50), ("0.0", 7, 1, 40, 40, 40),
    ]  # fmt: skip
    assert [(s.segment, s.split_bytes // MIB, s.count) for s in found.segments] == [(MIB, 50, 2), (1 << 40, 40, 1)]
    [oom] = [finding for finding in report.findings if finding.id == "memory.oom"]
    assert "default pool, stream 0: 50.0 MiB free in 2 blocks, the largest 30.0 MiB, smaller than the request" in {
        fact.text for fact in oom.evidence
    }
