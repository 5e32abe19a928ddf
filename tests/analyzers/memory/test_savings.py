"""Test the bytes that remedies are said to free."""

import json

import pytest

from analyzers import memory
from analyzers.memory.lifetimes import Replay
from analyzers.memory.loading import open_replay, open_snapshot
from analyzers.memory.simulator import SimulatedMemory, simulate
from analyzers.memory.snapshot import Action

MIB = 1 << 20


@pytest.fixture
def layered(maker):
    """Record four layers that each keep three tensors of 2 MiB and one of 10 MiB, and then run out of memory."""
    made = maker.Recording()
    for layer in range(4):
        for size in (2, 2, 2, 10):
            made.alloc(size * MIB, category="activations", user_metadata=f"layers.{layer}.attention")
    made.alloc(3 * MIB, category="activations", user_metadata="output")
    made.oom(64 * MIB, MIB, [maker.frame("forward")])
    made.ours = {"exact": True, "made_up_segments": True}
    return maker.save(made.snapshot())


def test_checkpointing_keeps_the_inputs_and_one_layer(layered):
    report = memory.analyze([layered])
    checkpointing, halved = report.data.devices[0].savings
    assert (checkpointing.remedy, checkpointing.of_bytes) == ("activation_checkpointing", 67 * MIB)
    assert checkpointing.frees_bytes == (67 - 16 - 4 * 2) * MIB
    assert (halved.remedy, halved.of_bytes, halved.frees_bytes) == ("half_batch", 67 * MIB, 67 * MIB // 2)
    [oom] = [finding for finding in report.findings if finding.id == "memory.oom"]
    assert "about 43.0 MiB of 67.0 MiB (each of 4 layers keeps its input" in oom.next
    assert "Half the batch or the sequence would free about 33.5 MiB of 67.0 MiB" in oom.next


@pytest.mark.parametrize(
    ("mode", "advice"),
    [
        ("none", "Turn on activation checkpointing"),
        ("selective", "Recompute all activations"),
        ("full", "Use a smaller batch"),
    ],
)
def test_what_is_recomputed_already_is_not_advised(layered, mode, advice):
    manifest = {
        "config": {
            "model": {"name": "llama3", "flavor": "debugmodel"},
            "training": {
                "local_batch_size": 1, "seq_len": 8, "mixed_precision_param": "float32", "dtype": "float32"
            },
            "activation_checkpoint": {"mode": mode},
        },
        "mesh": {"dp_shard": 1},
        "world_size": 1,
    }  # fmt: skip
    (layered.path.parents[1] / "run.json").write_text(json.dumps(manifest))
    [oom] = [finding for finding in memory.analyze([layered]).findings if finding.id == "memory.oom"]
    assert oom.next.startswith(advice)


def test_expandable_segments_are_known_to_help_by_whole_handles_only(maker):
    """Twice the requested bytes are reserved, so the saving cannot be derived from the requests."""
    made = maker.Recording(segment_bytes=800 * MIB)
    held = [made.alloc(50 * MIB) for _ in range(8)]
    for address in held[:6:2]:
        made.free(address)
    made.oom(500 * MIB, 2 * MIB, [])
    report = memory.analyze([maker.save(made.snapshot())])
    [estimate] = report.data.devices[0].savings
    free = [(address, address + 50 * MIB) for address in held[:6:2]] + [(held[0] + 400 * MIB, held[0] + 800 * MIB)]
    whole = sum(stop // (20 * MIB) - -(-start // (20 * MIB)) for start, stop in free)
    assert (estimate.of_bytes, estimate.frees_bytes) == (550 * MIB, whole * 20 * MIB)
    [finding] = [f for f in report.findings if f.id == "memory.fragmentation"]
    assert "would then be usable" in finding.next


def test_expandable_segments_are_not_advised_where_a_replay_frees_nothing(maker):
    """Every other block of 25 MiB is free, but no run of free pages is as long as what is mapped at once."""
    made = maker.Recording(segment_bytes=2000 * MIB)
    held = [made.alloc(25 * MIB) for _ in range(77)]
    for address in held[1::2]:
        made.free(address)
    made.oom(100 * MIB, 2 * MIB, [])
    report = memory.analyze([maker.save(made.snapshot())])
    [estimate] = report.data.devices[0].savings
    assert estimate.frees_bytes == 0
    [finding] = [f for f in report.findings if f.id == "memory.fragmentation"]
    assert "expandable_segments would free nothing here" in finding.next


def test_neighbours_that_were_segments_of_their_own_join_when_segments_expand(maker):
    made = maker.Recording(segment_bytes=400 * MIB)
    first, second = made.alloc(30 * MIB), made.alloc(30 * MIB)
    made.free(first)
    made.free(second)
    made.alloc(60 * MIB)
    replay = open_replay(maker.save(made.snapshot()))
    assert simulate(replay, expandable=False) == SimulatedMemory(reserved=120 * MIB, releasable=60 * MIB)
    assert simulate(replay, expandable=True) == SimulatedMemory(reserved=60 * MIB, releasable=0)


def test_small_and_middling_requests_share_segments(maker):
    """Up to 1 MiB in 2 MiB, below 10 MiB in 20 MiB. Of 16 that are left 15 are used again, and 1 is not cut off."""
    made = maker.Recording(segment_bytes=400 * MIB)
    for size in (600_000, 600_000, 600_000, 4 * MIB, 15 * MIB, 2 * MIB):
        made.alloc(size)
    assert simulate(open_replay(maker.save(made.snapshot())), expandable=False).reserved == (2 + 20 + 20) * MIB


@pytest.mark.real
def test_the_allocator_reserves_what_was_reserved(real_snapshots):
    """Recordings that begin with the process are simulated."""
    checked = 0
    for artefact in real_snapshots:
        snapshot = open_snapshot(artefact)
        for number in snapshot.devices:
            replay = Replay(snapshot.device(number))
            gone = len(replay.trace.where(Action.SEGMENT_FREE))
            if len(replay.trace) and not gone and not replay.start:
                told = simulate(replay, expandable=False).reserved
                assert told == pytest.approx(replay.trace.reserved_bytes, rel=0.01)
                checked += 1
    assert checked
