"""Test which settings a plan may choose, and how its formulas order them."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from math import prod

import pytest

from trainer.config import load
from trainer.plan.__main__ import SPEED_MARGIN, given, rank_of
from trainer.plan.candidates import Candidate, candidates, configured, meshes, speed_of
from trainer.plan.search import ModelSize, Plan, StepTime, peak_bytes, step_time

LARGE_MODEL = ("--model.flavor", "70B", "--training.seq_len", "8192")
SHARDED = Candidate(1, 64, 1, 1, 1, "full", "2", 1, offload=False, dtype="float32")


@pytest.fixture(scope="module")
def large():
    return load(None, LARGE_MODEL)


def seconds(config, candidate):
    return step_time(ModelSize.of(config), candidate, speed_of("h100", 64), 1).seconds


def test_plans_that_the_model_cannot_tell_apart_have_one_rank():
    """The third is more than the margin slower than the first, but not than the second."""
    speeds = [100.0, 90.0, 99.0 / (1 + SPEED_MARGIN), 50.0]
    plans = [Plan(SHARDED, 0, StepTime(1000 / speed, 0.0, 0.0, 0.0, 0.0, 1000)) for speed in speeds]
    assert [rank_of(one, plans) for one in plans] == [1, 1, 2, 4]


def test_every_mesh_has_all_ranks(large):
    found = list(meshes(large, 64))
    assert {prod(mesh) for mesh in found} == {64}
    assert len(found) == len(set(found))


def test_given_settings_are_kept(large):
    config = configured(large, replace(SHARDED, shard=16, tensor=4))
    kept = ["parallelism.tensor_parallel_degree", "activation_checkpoint.mode", "training.dtype"]
    found = list(candidates(config, 64, kept, 4))
    assert {(c.tensor, c.mode, c.dtype) for c in found} == {(4, "full", "float32")}
    assert {c.pipeline for c in found} >= {1, 2}


@pytest.mark.parametrize("flag", ["--training.enable_cpu_offload", "--training.no_enable_cpu_offload"])
def test_a_switch_is_kept_whether_it_is_turned_on_or_off(flag):
    assert given(["--model.flavor", "70B", flag]) == ["training.enable_cpu_offload"]


def test_only_what_the_trainer_can_run_is_tried():
    """The debug model has 2 key-value heads, which 4 ranks of tensor parallelism cannot divide."""
    found = list(candidates(load(None, ["--model.flavor", "debugmodel"]), 4, [], 2))
    assert {c.tensor for c in found} == {1, 2}


def test_recomputation_takes_time_and_saves_memory(large):
    kept, model = replace(SHARDED, mode="none"), ModelSize.of(large)
    assert seconds(large, SHARDED) > seconds(large, kept)
    assert peak_bytes(model, SHARDED, 1) < peak_bytes(model, kept, 1)


def test_more_microbatches_shorten_the_bubble(large):
    short, long = (replace(SHARDED, shard=8, pipeline=8, batch=batch) for batch in (8, 64))
    assert seconds(large, long) < 8 * seconds(large, short)


def test_offloading_costs_time(large):
    assert seconds(large, replace(SHARDED, offload=True)) > seconds(large, SHARDED)


@pytest.mark.slow
def test_best_plan_fits_and_the_next_larger_batch_does_not():
    """The plan is measured by the program behind `workbench estimate`, whose error is known."""
    flags = ["--config", "configs/fsdp.toml", "--activation_checkpoint.mode", "none", "--training.dtype", "float32"]
    done = subprocess.run(
        [sys.executable, "-m", "trainer.plan", "20000000", "0", "cpu", "1", *flags],
        env=os.environ | {"WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["plans"][0]["peak_bytes"] <= 20_000_000
    assert found["next_larger"]["peak_bytes"] > 20_000_000
    batches = [one["settings"]["training.local_batch_size"] for one in (found["plans"][0], found["next_larger"])]
    assert batches[1] == 2 * batches[0]


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "fits"), [(40, False), (80, True)])
def test_a_validation_that_does_not_fit_ends_the_search(limit, fits):
    """A validation batch of 128 needs 51 MB whatever the training does; training alone fits into 40 MB."""
    flags = ["--config", "configs/fsdp.toml", "--validation.enable", "--validation.local_batch_size", "128"]
    done = subprocess.run(
        [sys.executable, "-m", "trainer.plan", f"{limit}000000", "0", "cpu", "1", *flags],
        env=os.environ | {"WORLD_SIZE": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert found["complete"]
    assert bool(found["plans"]) == fits
    assert 45_000_000 < found["validation_bytes"] < 60_000_000
    # A batch whose training needs less than the validation is no reason to leave out a larger one.
    assert not fits or found["plans"][0]["peak_bytes"] >= found["validation_bytes"]


@pytest.mark.slow
def test_unknown_device_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "trainer.plan", "20000000", "0", "abacus", "1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "hint: choose one of a100" in done.stderr
