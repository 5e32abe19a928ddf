"""The first advice on a failed request is the change that would have satisfied it, by what the recording shows."""

import pytest

from analyzers import memory
from tests.analyzers.memory.findings.test_fragmentation import MIB, filled, segments_of

RECORDER = {"schema": "workbench.snapshot/1", "rank": 0, "step": 5, "exact": True, "made_up_segments": False}
EXPANDABLE, CHECK_BATCH, KEEPS, PROCESSES = "Set PYTORCH", "First check why", "Find what keeps", "List the processes"
FEWER_SIZES, CHECKPOINT, SHARD = "Allocate fewer", "Turn on activation", "Shard the parameters"


def frames(maker, name="forward", line=1):
    return [maker.frame(name, "/job/model.py", line)]


def steps(made, maker, count, inputs=1 * MIB, kept=0):
    """Record whole steps with an input batch each; `kept` bytes of each step are never freed."""
    for number in range(1, count + 1):
        made.note(f"step#{number}", "START")
        batch = made.alloc(inputs, frames(maker, "load"), category="inputs")
        if kept:
            made.alloc(kept, frames(maker, "log", 7), category="activations")
        made.free(batch)
        made.note(f"step#{number}", "END")


def fragmented(maker, request=100 * MIB, left=2 * MIB, gaps=20, category="activations"):
    """160 MiB are free in pieces of 8 MiB between blocks in use; the request fails."""
    made, _, free = filled(maker)
    for entry in made.entries:
        entry["category"] = category
    for address in free[:gaps]:
        made.free(address)
    made.ours = dict(RECORDER)
    made.oom(request, left, frames(maker))
    return made


def pieces_are_enough(maker):
    return fragmented(maker)


def pieces_are_too_few(maker):
    return fragmented(maker, gaps=3)


def pieces_and_the_device_are_enough(maker):
    return fragmented(maker, gaps=10, left=30 * MIB)


def memory_is_full(maker):
    return fragmented(maker, gaps=0)


def full_of_parameters(maker):
    return fragmented(maker, gaps=0, category="parameters")


def a_larger_batch_in_pieces(maker):
    made, _, free = filled(maker)
    for address in free:
        made.free(address)
    made.segment_bytes += 400 * MIB
    steps(made, maker, 4)
    made.note("step#5", "START")
    made.alloc(200 * MIB, frames(maker, "load"), category="inputs")
    made.ours = dict(RECORDER)
    made.oom(100 * MIB, 2 * MIB, frames(maker))
    return made


def leak(maker, pieces):
    made, _, free = filled(maker)
    for address in free if pieces else ():
        made.free(address)
    made.segment_bytes += 800 * MIB
    steps(made, maker, 8, kept=40 * MIB)
    made.note("step#9", "START")
    made.ours = dict(RECORDER)
    made.oom(100 * MIB, 2 * MIB, frames(maker))
    return made


def a_leak(maker):
    return leak(maker, pieces=False)


def a_leak_in_pieces(maker):
    return leak(maker, pieces=True)


def another_process(maker):
    made = fragmented(maker, gaps=0)
    made.ours |= {"limit_bytes": 4 << 30, "device_used_bytes": (4 << 30) - 2 * MIB, "device_process_bytes": 1 << 30}
    return made


def freed_afterwards(maker):
    made, _, free = filled(maker)
    for entry in made.entries:
        entry["category"] = "activations"
    made.ours = dict(RECORDER)
    made.oom(100 * MIB, 2 * MIB, frames(maker))
    for address in free:
        made.free(address)
    return made


def pieces_of_another_stream(maker):
    made = fragmented(maker)
    made.entries[-1]["stream"] = 7
    return made


def segments_that_expand(maker):
    made = fragmented(maker)
    made.expandable = True
    return made


def one_layer_in_pieces(maker):
    made = fragmented(maker)
    for entry in made.entries[:-1]:
        entry["user_metadata"] = "layers.3"
    return made


CASES = [
    (pieces_are_enough, EXPANDABLE),
    (pieces_are_too_few, CHECKPOINT),
    (pieces_and_the_device_are_enough, EXPANDABLE),
    (memory_is_full, CHECKPOINT),
    (full_of_parameters, SHARD),
    (a_larger_batch_in_pieces, CHECK_BATCH),
    (a_leak, KEEPS),
    (a_leak_in_pieces, KEEPS),
    (another_process, PROCESSES),
    (freed_afterwards, CHECKPOINT),
    (pieces_of_another_stream, CHECKPOINT),
    (segments_that_expand, FEWER_SIZES),
    (one_layer_in_pieces, EXPANDABLE),
]


@pytest.mark.parametrize(("make", "first"), CASES, ids=[make.__name__ for make, _ in CASES])
def test_the_first_advice_satisfies_the_request(make, first, maker):
    made = make(maker)
    snapshot = segments_of(made.snapshot())
    for segment in snapshot["segments"]:
        segment["is_expandable"] = getattr(made, "expandable", False)
    report = memory.analyze([maker.save(snapshot)])
    [finding] = [finding for finding in report.findings if finding.id == "memory.oom"]
    assert finding.next.startswith(first), finding.next
