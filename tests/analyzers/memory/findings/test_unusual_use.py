"""Findings about the composition of the peak: present if their cause is, absent otherwise."""

import pytest

from analyzers import memory
from analyzers.memory import views

MIB = 1 << 20


def training(maker, *, keep=0, logits=0, late=False, larger=0, steps=5):
    """Record steps of a model with 8 MiB of weights and state and 20 MiB of activations, and the given problems."""
    made = maker.Recording(segment_bytes=80 * MIB)
    site = {name: [maker.frame(name, f"/job/{name}.py", 7)] for name in ("model", "head", "cross_entropy", "optim")}
    made.ours = {"exact": True, "step": steps, "rank": 0}
    blocks = {made.older(8 * MIB): ["parameters", "w"]}
    if not late:
        blocks[made.older(16 * MIB)] = ["optimizer_state", "w.exp_avg"]
    made.ours["blocks"] = blocks
    for number in range(1, steps + 1):
        made.note(f"step#{number}", "START")
        saved = made.alloc(20 * MIB, site["model"], category="activations", user_metadata="layers.0")
        if larger and number == 4:
            made.free(made.alloc(larger, site["head"], category="temporary"))
        if keep and number <= 2:
            made.alloc(keep, site["head"], category="activations")
        if logits:
            made.free(made.alloc(logits, site["cross_entropy"], category="temporary"))
        made.free(saved)
        if late and number == 1:
            made.alloc(16 * MIB, site["optim"], category="optimizer_state", user_metadata="w.exp_avg")
        made.note(f"step#{number}", "END")
    return memory.analyze([maker.save(made.snapshot())])


def test_a_healthy_training_has_no_such_finding(maker):
    assert training(maker).findings == []


@pytest.mark.parametrize(
    ("planted", "name", "title"),
    [
        ({"late": True}, "memory.late_state", "The first optimizer step allocated 16.0 MiB of optimizer state"),
        ({"logits": 20 * MIB}, "memory.loss", "The loss takes 31 % of peak allocated memory on rank 0"),
        ({"keep": 3 * MIB}, "memory.kept", "6.0 MiB of activations stay allocated long after their backward pass"),
        ({"larger": 20 * MIB}, "memory.spike", "Step 4 on rank 0 needed 64.0 MiB, the 4 other steps at most 44.0 MiB"),
    ],
)
def test_the_planted_cause_is_found(maker, planted, name, title):
    findings = {finding.id: finding for finding in training(maker, **planted).findings}
    assert findings.keys() == {name}
    assert findings[name].title == title
    assert findings[name].next
    assert findings[name].evidence
    if name == "memory.kept":
        assert "still allocated at the end of the recording, after step 5." in findings[name].why


def test_the_loss_in_pieces_frees_all_but_one(maker):
    [finding] = training(maker, logits=20 * MIB).findings
    assert "With 8 pieces the peak would be about 17.5 MiB lower" in finding.next


def test_activations_that_are_most_of_the_peak(maker):
    """In two steps each of four layers has 10 MiB, of which an input of 2 MiB would stay; the head keeps nothing."""
    made = maker.Recording(segment_bytes=50 * MIB)
    made.ours = {"exact": True, "step": 2, "rank": 0, "blocks": {made.older(8 * MIB): ["parameters", "w"]}}
    for number in (1, 2):
        made.note(f"step#{number}", "START")
        made.note("fwd", "START")
        saved = [
            made.alloc(2 * MIB, category="activations", user_metadata=f"layers.{n}.wq")
            for n in range(4)
            for _ in "12345"
        ]
        made.note("fwd", "END")
        made.note("bwd", "START")
        for address in reversed(saved):
            made.free(address)
        made.note("bwd", "END")
        made.note(f"step#{number}", "END")
    report = memory.analyze([maker.save(made.snapshot())])
    [finding] = report.findings
    assert (finding.id, finding.title) == (
        "memory.activation_peak",
        "Activations are 83 % of peak allocated memory on rank 0",
    )
    # Every layer's input stays, 8 MiB, and one layer at a time has its other 8.
    assert "free about 24.0 MiB of these 40.0 MiB" in finding.next


def test_who_holds_what_at_the_end_of_each_step(maker):
    made = maker.Recording()
    made.ours = {"exact": True, "blocks": {made.older(8 * MIB): ["parameters", "w"]}}
    for number in (1, 2, 3):
        made.note(f"step#{number}", "START")
        made.alloc(MIB, category="activations")
        made.free(made.alloc(number * 5 * MIB, category="temporary"))
        made.note(f"step#{number}", "END")
    artefact = maker.save(made.snapshot())
    table = views.steps(artefact)
    assert table["step"].tolist() == [1, 2, 3]
    assert (table["peak_bytes"] // MIB).tolist() == [14, 20, 26]
    assert (table["end_bytes"] // MIB).tolist() == [9, 10, 11]
    assert (table["activations"] // MIB).tolist() == [1, 2, 3]
    assert (table["parameters"] // MIB).tolist() == [8, 8, 8]
    assert (table["last_entry"] == table["first_entry"] + 3).all()
    used = memory.analyze([artefact]).data.devices[0].steps
    assert [sum(step.end_categories.values()) for step in used] == table["end_bytes"].tolist()


def failing(maker, sizes, asked):
    """Record steps with live blocks of these sizes, and then a failed request of `asked` bytes."""
    made = maker.Recording()
    made.ours = {"exact": True}
    for number, size in enumerate(sizes, 1):
        made.note(f"step#{number}", "START")
        made.free(made.alloc(size, category="activations", user_metadata="layers.3.wq"))
        made.note(f"step#{number}", "END")
    made.note(f"step#{len(sizes) + 1}", "START")
    made.alloc(30 * MIB, category="activations", user_metadata="layers.3.wq")
    made.alloc(10 * MIB, category="parameters", user_metadata="head")
    made.oom(asked, MIB, [maker.frame("forward", "/job/model.py")])
    return memory.analyze([maker.save(made.snapshot())])


@pytest.mark.parametrize(
    ("sizes", "pattern", "told"),
    [
        ([50 * MIB] * 3, "steady", "every step needs so much: earlier steps had up to 50.0 MiB allocated"),
        ([20 * MIB] * 3, "spike", "only this step needs so much: earlier steps had at most 20.0 MiB allocated"),
        ([], "unknown", None),
    ],
)
def test_a_failure_is_a_spike_or_too_large_a_state(maker, sizes, pattern, told):
    report = failing(maker, sizes, 5 * MIB)
    oom = report.data.devices[0].oom
    assert (oom.pattern, oom.usual_peak_bytes) == (pattern, max(sizes, default=None))
    assert oom.modules == {"layers.3": 30 * MIB, "head": 10 * MIB}
    [finding] = [f for f in report.findings if f.id == "memory.oom"]
    assert told is None or any(told in fact.text for fact in finding.evidence)
    assert ("memory.oom.spike" in {f.id for f in report.findings}) == (pattern == "spike")


def test_a_failure_after_steady_growth_names_the_first_step(maker):
    made = maker.Recording()
    for number in range(1, 8):
        made.note(f"step#{number}", "START")
        if number > 1:
            made.alloc(4 * MIB, [maker.frame("keep", "/job/loop.py", 7)], category="activations")
        made.note(f"step#{number}", "END")
    made.oom(4 * MIB, MIB, [maker.frame("keep", "/job/loop.py", 7)])
    made.ours = {"exact": True}
    oom = memory.analyze([maker.save(made.snapshot())]).data.devices[0].oom
    assert (oom.pattern, oom.since_step) == ("growth", 2)
