"""What-if estimates, compared with real runs, and with recordings whose result can be computed by hand."""

import runpy
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from analyzers.errors import InputError
from analyzers.memory import CATEGORIES, analyze
from analyzers.memory.what_if import what_if
from ranks import start

MIB = 1 << 20
RUNS = runpy.run_path(str(Path(__file__).parents[3] / "benchmarks" / "what_if" / "memory.py"))


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    made = {}

    def run(ranks, *flags):
        if (ranks, flags) not in made:
            made[ranks, flags] = RUNS["record"](ranks, flags, tmp_path_factory.mktemp("run"), start)
        return made[ranks, flags]

    return run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "ranks", "flags", "error"),
    [
        ("batch=8,seq=2x", 1, (*RUNS["BATCH"], *RUNS["SEQ"]), 0.02),
        ("ac=full", 1, RUNS["FULL"], 0.02),
        ("dp_shard=2,ac=full", 2, RUNS["FULL"], 0.1),
    ],
)
def test_another_run_is_foreseen(record, asked, ranks, flags, error):
    [told] = what_if([record(1)], asked)
    [device] = analyze([record(ranks, *flags)]).data.devices
    assert told.new_peak_bytes == pytest.approx(device.peak_allocated_bytes, rel=error)
    assert sum(told.new_categories.values()) == told.new_peak_bytes
    for name in ("optimizer_state", "inputs"):
        assert told.new_categories[name] == pytest.approx(device.categories[name], rel=0.02)


def tagged(maker, seed):
    recording = maker.wander(seed)
    for number, entry in enumerate(entry for entry in recording.entries if entry["action"] == "alloc"):
        entry["category"] = CATEGORIES[number % 6]
    recording.ours = {"schema": "workbench.snapshot/1", "exact": True, "rank": 0, "step": 5}
    return recording.snapshot()


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), factor=st.sampled_from([1, 2, 3]))
def test_the_peak_is_found_again_by_hand(maker, oracle, seed, factor):
    snapshot, told = tagged(maker, seed), None
    with suppress(InputError):
        [told] = what_if([maker.save(snapshot, f"rank0_{seed}_{factor}_memory_snapshot.pickle")], f"batch={factor}x")
    if told is None:
        reject()  # older blocks, which have no category, are most of this peak
    start, peak, *_ = oracle(snapshot, 0)
    live, now, highest = {}, start, start
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            grows = entry["category"] in ("activations", "inputs")
            live[entry["addr"]] = entry["size"] * (factor if grows else 1)
            now += live[entry["addr"]]
        elif entry["action"] == "free_completed":
            now -= live.pop(entry["addr"], entry["size"])
        highest = max(highest, now)
    assert (told.peak_bytes, told.new_peak_bytes) == (peak, highest)
    assert sum(told.new_categories.values()) == highest


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ("batch", "no list of changes"),
        ("depth=2x", "no list of changes"),
        ("", "no list of changes"),
        ("batch=0x", "neither a number nor a factor"),
        ("batch=8", "no run.json"),
        ("seq=-4", "neither a number nor a factor"),
        ("optim_dtype=int3", "optim_dtype=int3"),
        ("ac=budget", "cannot tell"),
        ("ac=full", "no activation is known to be of a layer"),
    ],
)
def test_what_cannot_be_told_is_refused(maker, asked, says):
    with pytest.raises(InputError, match=says) as caught:
        what_if([maker.save(tagged(maker, 3))], asked)
    assert caught.value.hint


def test_an_unknown_peak_is_not_scaled(maker):
    with pytest.raises(InputError, match="not known what most of the peak is"):
        what_if([maker.save(maker.wander(3).snapshot())], "batch=2x")


def test_half_precision_halves_the_moments(maker):
    snapshot = tagged(maker, 5)
    [told] = what_if([maker.save(snapshot)], "optim_dtype=bfloat16")
    assert told.new_peak_bytes < told.peak_bytes
    [same] = what_if([maker.save(snapshot)], "optim_dtype=float32")
    assert same.new_peak_bytes == same.peak_bytes


def layered(maker, *, passes=True, fails=False):
    """Record four layers of a script without annotations, each of which saves its input and 7 MiB more.

    `passes`: the stacks show the forward and backward pass; `fails`: a request in the forward pass fails.
    """
    forward = [maker.frame("forward")] if passes else [maker.frame("work")]
    engine = [maker.frame("torch::autograd::Engine::evaluate_function()", "??", 0)] if passes else forward
    made, saved = maker.Recording(), []
    for layer in range(4):
        kind = {"category": "activations", "user_metadata": f"blocks.{layer}.mlp"}
        saved += [made.alloc(size * MIB, forward, **kind) for size in (1, 1, 1, 5)]
    if fails:
        made.oom(64 * MIB, MIB, forward)
    for address in reversed(saved):
        gradient = made.alloc(4096, engine, category="temporary", user_metadata="")
        made.free(address, engine)
        made.free(gradient, engine)
    made.ours = {"schema": "workbench.snapshot/1", "exact": True, "rank": 0, "step": 5}
    return maker.save(made.snapshot())


def test_recomputation_is_foreseen_in_a_script_without_annotations(maker):
    recording = layered(maker)
    [told] = what_if([recording], "ac=full")
    # Four inputs of 1 MiB, the other 7 MiB of the last layer, and a gradient.
    assert (told.peak_bytes, told.new_peak_bytes) == (32 * MIB + 4096, 11 * MIB + 4096)
    [device] = analyze([recording]).data.devices
    freed = {saving.remedy: saving.frees_bytes for saving in device.savings}
    assert freed["activation_checkpointing"] == told.peak_bytes - told.new_peak_bytes


@pytest.mark.parametrize(
    ("kind", "says"), [({"passes": False}, "neither annotations nor"), ({"fails": True}, "failed")]
)
def test_recomputation_is_unknown_without_whole_passes(maker, kind, says):
    with pytest.raises(InputError, match=f"unknown, as .*{says}") as caught:
        what_if([layered(maker, **kind)], "ac=full")
    assert "workbench estimate" in caught.value.hint
