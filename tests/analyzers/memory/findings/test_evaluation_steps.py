"""Forward passes without a backward pass are no training steps where steps are inferred from stacks."""

import pytest

from analyzers.memory import analyze
from analyzers.memory.loading import open_replay
from analyzers.memory.training_loop import training_loop

MB = 1_000_000
T, E = "train", "evaluate"


def run_pass(recording, maker, kind, size=MB, kept=0, engine=True):
    """Record one pass of a loop that trains and evaluates in one function: `run(batch, training)`."""
    outer = [maker.frame("run", "train.py", 12), maker.frame("main", "train.py", 40)]
    forward = [maker.frame("forward", "model.py", 5), *outer]
    sites = {name: [maker.frame(name, "model.py", line), *forward] for line, name in enumerate(("embed", "layer"))}
    saved = [recording.alloc(40_000, sites["embed"])]
    saved += [recording.alloc(size, sites["layer"]) for _ in range(3)]
    if kept:
        recording.alloc(kept, [maker.frame("log", "train.py", 30), *outer])
    if kind == T:
        frames = [maker.frame("torch::autograd::Engine::evaluate_function", "??", 0)] if engine else []
        for address in reversed(saved):
            gradient = recording.alloc(90_000, frames)
            recording.free(address)
            recording.free(gradient)
        return
    for address in saved:
        recording.free(address)


def recorded(maker, kinds, **options):
    """Return a snapshot of passes; `options` may have `sizes` by the number of a pass."""
    recording, sizes = maker.Recording(), options.pop("sizes", {})
    for number, kind in enumerate(kinds):
        run_pass(recording, maker, kind, size=sizes.get(number, MB), **options)
    return maker.save(recording.snapshot())


def steps_of(artefact):
    return len(training_loop(open_replay(artefact)).steps)


@pytest.mark.parametrize(
    ("kinds", "engine", "steps"),
    [
        ([T] * 12, True, 12),
        ([T, T, T, E] * 4, True, 12),
        ([T, T, T, E] * 4, False, 12),
        (([T] * 4 + [E] * 3) * 3, True, 12),
        ([E] * 3 + [T] * 9, True, 9),
        ([T] * 9 + [E] * 3, False, 9),
    ],
    ids=["no evaluation", "each third", "each third, Python stacks", "three batches", "first", "last, Python stacks"],
)
def test_passes_without_a_backward_pass_are_no_steps(maker, kinds, engine, steps):
    assert abs(steps_of(recorded(maker, kinds, engine=engine)) - steps) <= 1


def ids(artefact):
    return {finding.id: finding for finding in analyze([artefact]).findings}


def test_an_evaluation_that_needs_more_is_no_larger_step(maker):
    kinds = [T, T, T, E] * 5
    found = ids(recorded(maker, kinds, sizes={n: 3 * MB for n, kind in enumerate(kinds) if kind == E}))
    assert "memory.spike" not in found


def test_a_larger_step_is_found_among_the_training_steps_alone(maker):
    kinds = [T, T, T, E] * 4
    found = ids(recorded(maker, kinds, sizes={5: 3 * MB}))
    assert "the 11 other steps" in found["memory.spike"].title or "the 10 other steps" in found["memory.spike"].title


def test_a_leak_beside_evaluations_is_found(maker):
    found = ids(recorded(maker, [T, T, T, E] * 4, kept=80_000))
    assert "memory.leak" in found
    assert "shows a backward pass" not in found["memory.leak"].why


def test_a_leak_of_inference_says_that_nothing_trains(maker):
    found = ids(recorded(maker, [E] * 12, kept=80_000))
    assert "No stack shows a backward pass" in found["memory.leak"].why


def test_inference_without_a_leak_is_silent(maker):
    assert "memory.leak" not in ids(recorded(maker, [E] * 12))


def test_a_larger_pass_of_inference_says_that_nothing_trains(maker):
    found = ids(recorded(maker, [E] * 12, sizes={5: 3 * MB}))
    assert "No stack shows a backward pass" in found["memory.spike"].why


def with_evaluation(maker, *, no_grad=False, fails=False, backward=True):
    """Record six steps with recorded categories; after the third an evaluation of a batch three times as large."""
    made = maker.Recording()
    for number in range(6):
        run_step(made, maker, [maker.frame("main", "train.py", 20)], MB, backward=backward)
        if number == 2:
            caller = [maker.frame("evaluate", "train.py", 14), maker.frame("main", "train.py", 27)]
            run_step(made, maker, caller, 3 * MB, backward=False, category="temporary" if no_grad else "activations")
    if fails:
        made.oom(64 * MB, MB, [maker.frame("forward", "model.py", 5)])
    made.ours = {"schema": "workbench.snapshot/1", "exact": True, "rank": 0, "step": 6}
    return maker.save(made.snapshot())


def run_step(made, maker, caller, size, *, backward, category="activations"):
    """Record a forward pass of ten layers, and the backward pass or the frees that follow it."""
    forward = [maker.frame("forward", "model.py", 5), *caller]
    engine = [maker.frame("torch::autograd::Engine::evaluate_function", "??", 0)] if backward else caller
    saved = [made.alloc(size, forward, category=category, user_metadata=f"layers.{n}.mlp") for n in range(10)]
    for address in reversed(saved):
        gradient = made.alloc(9_000, engine, category="temporary", user_metadata="")
        made.free(address, engine)
        made.free(gradient, engine)


def test_an_evaluation_that_keeps_its_graph_is_told_to_use_no_grad(maker):
    found = ids(with_evaluation(maker))
    finding = found["memory.unused_graph"]
    assert finding.next.startswith("Run the forward pass in evaluate (train.py:14) under torch.no_grad()")
    assert "up to 19.1 MiB lower" in finding.next
    assert not found.keys() & {"memory.spike", "memory.activation_peak"}


@pytest.mark.parametrize("kind", [{"no_grad": True}, {"fails": True}, {"backward": False}], ids=str)
def test_frees_that_show_no_unused_graph_are_silent(maker, kind):
    assert "memory.unused_graph" not in ids(with_evaluation(maker, **kind))
