"""Steps of traces in which no steps are marked, and the leaks found in them."""

import gzip
import pickle
from pathlib import Path

import pytest

from analyzers.memory import analyze
from analyzers.memory.loading import open_replay
from analyzers.memory.phases import whole_steps
from analyzers.memory.training_loop import inferred_steps

FIXTURES = Path(__file__).parents[2] / "fixtures"
PLAIN = {"action", "addr", "size", "stream", "time_us", "frames", "device_free"}
"""The fields that PyTorch itself records of a trace entry."""


@pytest.fixture(scope="module")
def recorded():
    """Fixture: snapshots of two ranks with our recorder's step marks; rank 1 leaks."""
    folder = FIXTURES / "leak_2ranks" / "memory_snapshot" / "iteration_10"
    return [pickle.loads(gzip.decompress((folder / f"rank{r}_memory_snapshot.pickle.gz").read_bytes())) for r in (0, 1)]


def unmarked(snapshot):
    """Return the snapshot as PyTorch's own recorder would have written it, without step marks."""
    trace = [{key: value for key, value in entry.items() if key in PLAIN} for entry in snapshot["device_traces"][0]]
    return snapshot | {"external_annotations": [], "device_traces": [trace]}


def test_steps_are_those_that_the_recorder_marked(recorded, maker):
    marked = [(step.start, step.end) for step in whole_steps(open_replay(maker.save(recorded[1])).trace)]
    replay = open_replay(maker.save(unmarked(recorded[1]), step="iteration_6"))
    inferred = inferred_steps(replay.trace, replay.live_bytes)
    assert [step.number for step in inferred] == [1, 2, 3, 4, 5]
    for (start, end), step in zip(marked, inferred, strict=True):
        assert abs(step.start - start) <= 1
        assert abs((step.end or 0) - end) <= 1


def test_a_leak_is_found_without_marks_on_the_rank_that_has_it(recorded, maker):
    healthy, leaking = (analyze([maker.save(unmarked(snapshot))]) for snapshot in recorded)
    assert "memory.leak" not in {finding.id for finding in healthy.findings}
    [leak] = [finding for finding in leaking.findings if finding.id == "memory.leak"]
    assert leak.title == "Memory grows by 640.0 KiB per step in forward (trainer/models/llama3/model.py:105)"
    assert leak.step is None
    assert leak.why.endswith("workbench derived the steps from call stacks that repeat.")


def loop(recording, maker, steps, *, kept=0, every=1, layers=()):
    """Record a training loop of an embedding, three layers and a loss; in every `every`-th step an output is kept.

    `layers` has the sizes of the layers' outputs in the first steps, if they are not 90,000.
    """
    forward = [maker.frame("forward", line=10), maker.frame("main", "train.py", 1)]
    sites = {name: [maker.frame(name, line=line), *forward] for line, name in enumerate(("embed", "layer", "loss"))}
    for step in range(steps):
        saved = [recording.alloc(40_000, sites["embed"])]
        for _ in range(3):
            saved.append(recording.alloc(dict(enumerate(layers)).get(step, 90_000), sites["layer"]))
            recording.free(recording.alloc(20_000, sites["layer"]))
        saved.append(recording.alloc(4_000, sites["loss"]))
        if kept and step % every == 0:
            recording.alloc(kept, sites["loss"])
        for address in reversed(saved):
            recording.free(address)


@pytest.mark.parametrize(("steps", "kept", "every", "found"), [(4, 0, 1, 0), (6, 0, 1, 6), (9, 0, 1, 9)])
def test_what_recurs_once_a_step_bounds_the_steps(maker, steps, kept, every, found):
    recording = maker.Recording()
    loop(recording, maker, steps, kept=kept, every=every)
    replay = open_replay(maker.save(recording.snapshot()))
    assert len(inferred_steps(replay.trace, replay.live_bytes)) == found


@pytest.mark.parametrize(
    ("steps", "kept", "every", "leaks"),
    [(8, 80_000, 1, True), (16, 80_000, 2, True), (12, 80_000, 4, False), (8, 0, 1, False)],
    ids=["every step", "every second step", "every fourth step", "nothing"],
)
def test_what_is_kept_again_and_again_is_a_leak(maker, steps, kept, every, leaks):
    recording = maker.Recording()
    loop(recording, maker, steps, kept=kept, every=every)
    found = {finding.id for finding in analyze([maker.save(recording.snapshot())]).findings}
    assert ("memory.leak" in found) is leaks


def test_weights_that_are_loaded_one_by_one_are_no_leak(maker):
    recording = maker.Recording()
    read, convert = [maker.frame("load_weights", line=31)], [maker.frame("to", line=32)]
    for _ in range(24):
        temporary = recording.alloc(2 << 20, read)
        recording.alloc(1 << 20, convert)
        recording.free(temporary)
    artefact = maker.save(recording.snapshot())
    replay = open_replay(artefact)
    assert len(inferred_steps(replay.trace, replay.live_bytes)) >= 23
    assert "memory.leak" not in {finding.id for finding in analyze([artefact]).findings}


MB = 1_000_000


def spikes(maker, sizes):
    """Return the findings on larger steps of a loop whose layers' outputs have these sizes in its steps."""
    recording = maker.Recording()
    loop(recording, maker, len(sizes), layers=sizes)
    found = analyze([maker.save(recording.snapshot())]).findings
    return [finding for finding in found if finding.id in ("memory.spike", "memory.oom.spike")]


def test_a_step_that_needs_more_than_all_others_is_found_without_marks(maker):
    [finding] = spikes(maker, [MB, MB, MB, 3 * MB, MB, MB, MB, MB])
    assert finding.title == "One of 8 steps on rank 0 needed 8.6 MiB, the 7 other steps at most 2.9 MiB"
    assert "The largest difference is in layer (train/model.py:1)." in finding.why
    assert "workbench derived the steps from call stacks that repeat." in finding.why
    assert finding.step is None


def test_two_larger_steps_of_many_are_counted(maker):
    [finding] = spikes(maker, [MB] * 3 + [2 * MB] + [MB] * 6 + [3 * MB])
    assert finding.title == "2 of 11 steps on rank 0 needed at most 8.6 MiB, the 9 other steps at most 2.9 MiB"


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param([MB] * 8, id="equal"),
        pytest.param([MB, MB, MB, int(1.08 * MB), MB, MB, MB, MB], id="hardly larger"),
        pytest.param([MB, 2 * MB] * 5, id="every other one"),
        pytest.param([int(0.5 * MB), MB, int(0.75 * MB), int(1.2 * MB), int(0.6 * MB), int(0.9 * MB)], id="scattered"),
    ],
)
def test_ordinary_steps_have_no_such_finding(maker, sizes):
    assert spikes(maker, sizes) == []


def test_a_failed_request_is_compared_with_inferred_steps(maker):
    recording = maker.Recording()
    loop(recording, maker, 6)
    recording.alloc(5 * MB, [maker.frame("layer", line=1), maker.frame("forward", line=10)])
    recording.oom(MB, 0, [maker.frame("layer", line=1)])
    findings = {finding.id: finding for finding in analyze([maker.save(recording.snapshot())]).findings}
    title = findings["memory.oom.spike"].title
    assert title == "Step 5 of rank 0 needed at least 5.7 MiB, earlier steps at most 322.3 KiB"
    assert "memory.spike" not in findings
