"""The breakdown table of recordings in which every block is known."""

from collections import Counter

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzers.errors import InputError
from analyzers.memory import CATEGORIES
from analyzers.memory.breakdown import breakdowns, narrow_category
from analyzers.memory.job import Job


def tagged(maker, seed, count=200):
    """Return a random recording whose allocations have categories, as our recorder writes them."""
    recording = maker.wander(seed, count)
    for number, entry in enumerate(entry for entry in recording.entries if entry["action"] == "alloc"):
        entry["category"] = CATEGORIES[number % (len(CATEGORIES) - 1)]
        entry["user_metadata"] = f"layers.{number % 3}.part{number % 5}"
    recording.ours = {"schema": "workbench.snapshot/1", "exact": True, "rank": 0, "step": 5, "process_bytes": 10**9}
    return recording


def slowly(snapshot):
    """Return {category: its highest bytes}, computed entry by entry, for blocks allocated in the trace."""
    live, now, highest = {}, Counter(), Counter()
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            live[entry["addr"]] = entry["category"], entry["size"]
            now[entry["category"]] += entry["size"]
        elif entry["action"] == "free_completed" and entry["addr"] in live:
            category, size = live.pop(entry["addr"])
            now[category] -= size
        highest |= now
    return highest


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6))
def test_the_rows_sum_to_the_peak_and_the_marks_are_the_highest(maker, oracle, seed):
    snapshot = tagged(maker, seed).snapshot()
    [one] = breakdowns([maker.save(snapshot, f"rank0_{seed}_memory_snapshot.pickle")])
    assert one.peak_bytes == oracle(snapshot, 0)[1] == sum(holder.bytes for holder in one.categories)
    highest = slowly(snapshot)
    assert {mark.name: mark.bytes for mark in one.high_water} == {
        name: highest[name] for name in ("temporary", "workspace", "communication") if highest[name]
    }
    assert [t.bytes for t in one.tensors] == sorted((t.bytes for t in one.tensors), reverse=True)


def test_segments_and_overhead_are_what_the_state_says(maker, oracle):
    recording = tagged(maker, 7)
    [one] = breakdowns([maker.save(recording.snapshot())])
    [segments] = one.segments
    end = oracle(recording.snapshot(), 0)[3]
    assert (segments.reserved_bytes, segments.allocated_bytes) == (1 << 30, end)
    assert segments.free_bytes == (1 << 30) - end
    assert (one.overhead.used_bytes, one.overhead.untracked_bytes) == (10**9, 10**9 - end)


@pytest.mark.parametrize(
    ("category", "name", "row"),
    [
        ("parameters", "layers.0.wq.weight", "parameters"),
        ("parameters", "layers.0.wq.qweight", "quantized weights"),
        ("parameters", "layers.0.wq.lora_A.default.weight", "adapter weights"),
        ("parameters", "layers.0.w1 bitsandbytes/nn/modules.py Linear4bit", "quantized weights"),
        ("activations", "layers.0.lora_A", "activations"),
    ],
)
def test_weights_of_a_kind_of_their_own(category, name, row):
    assert narrow_category(category, name) == row


def test_a_file_that_is_none_is_refused(maker, tmp_path):
    path = tmp_path / "rank0_memory_snapshot.pickle"
    path.write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(InputError):
        breakdowns([maker.artefact(path)])


def test_the_formula_counts_each_tensor_once():
    job = Job(
        name="", dim=10, hidden_dim=30, layers=2, heads=5, batch=2, seq=3, compute_bytes=2, state_bytes=4,
        checkpointing="none", dp_shard=1, world_size=1,
    )  # fmt: skip
    # Six positions: nine vectors of dim and four of hidden_dim in two bytes, and 2 norms and 5 heads in four.
    assert job.activation_bytes_per_layer == 6 * (2 * (9 * 10 + 4 * 30) + 4 * (2 + 5))
    wide = msgspec.structs.replace(job, head_dim=4)
    assert wide.activation_bytes_per_layer == 6 * (2 * (4 * 10 + 5 * 5 * 4 + 4 * 30) + 4 * (2 + 5))


def test_gradients_without_a_name_are_named_after_the_parameters_of_their_size(maker):
    recording = maker.Recording()
    sizes = {"embed": 7 << 20, "layers.0.wq": 4 << 20, "layers.1.wq": 4 << 20}
    for name, size in sizes.items():
        recording.alloc(size, category="parameters", user_metadata=name)
    made_by = [maker.frame("__init__", "/job/model.py", 9)]
    recording.alloc(3 << 20, made_by, category="parameters")
    for size in (7 << 20, 4 << 20, 4 << 20, 3 << 20, 2 << 20):
        recording.alloc(size, category="gradients")
    recording.ours = {"schema": "workbench.snapshot/1", "exact": True, "rank": 0, "step": 5}
    [one] = breakdowns([maker.save(recording.snapshot())])
    names = [tensor.name for tensor in one.tensors if tensor.category == "gradients"]
    assert names == [
        "gradient of embed",
        "gradient of one of 2 parameters of this size",
        "gradient of one of 2 parameters of this size",
        "gradient of the parameter of /job/model.py:9 __init__",
        "(no name)",
    ]


def test_more_gradients_than_parameters_of_a_size_have_no_name(maker):
    recording = maker.Recording()
    recording.alloc(4 << 20, category="parameters", user_metadata="wq")
    for _ in range(2):
        recording.alloc(4 << 20, category="gradients")
    recording.ours = {"schema": "workbench.snapshot/1", "exact": True, "rank": 0, "step": 5}
    [one] = breakdowns([maker.save(recording.snapshot())])
    assert {tensor.name for tensor in one.tensors if tensor.category == "gradients"} == {"(no name)"}
