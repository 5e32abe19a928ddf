"""What the remedies are said to free."""

import json

import pytest

from analyzers import memory

MIB = 1 << 20


@pytest.fixture
def layered(maker):
    """Four layers that each keep three tensors of 2 MiB and one of 10, out of memory after the last."""
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
    checkpointing, halved = report.data.devices[0].estimates
    assert (checkpointing.what, checkpointing.of_bytes) == ("activation_checkpointing", 67 * MIB)
    assert checkpointing.frees_bytes == (67 - 16 - 4 * 2) * MIB
    assert (halved.what, halved.of_bytes, halved.frees_bytes) == ("half_batch", 67 * MIB, 67 * MIB // 2)
    [oom] = [finding for finding in report.findings if finding.id == "memory.oom"]
    assert "about 43.0 MiB of 67.0 MiB usable (each of 4 layers keeps its input" in oom.next
    assert "Half the batch or the sequence would make about 33.5 MiB of 67.0 MiB usable" in oom.next


@pytest.mark.parametrize(
    ("mode", "advice"),
    [
        ("none", "Turn on activation checkpointing"),
        ("selective", "Recompute all activations"),
        ("full", "Make the batch"),
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


def test_expandable_segments_free_whole_pages_only(maker):
    made = maker.Recording(segment_bytes=400 * MIB)
    held = [made.alloc(5 * MIB) for _ in range(80)]
    for address in held[::2]:
        made.free(address)
    report = memory.analyze([maker.save(made.snapshot())])
    [estimate] = report.data.devices[0].estimates
    free = [(k * 5, k * 5 + 5) for k in range(0, 80, 2)]  # in MiB, the segment begins on a page
    pages = sum(all(low <= at < high for at in (page, page + 1)) for low, high in free for page in range(0, 400, 2))
    assert (estimate.of_bytes, estimate.frees_bytes) == (200 * MIB, pages * 2 * MIB)
    [finding] = [f for f in report.findings if f.id == "memory.fragmentation"]
    assert "That would make about" in finding.next
