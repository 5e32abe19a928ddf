"""Tensor parallelism: the same losses and gradient norms as on one rank, and checkpoints that load on any mesh."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainer.config import ConfigError, JobConfig, validate
from trainer.config.degrees import Degrees
from trainer.config.sections import Parallelism

Run = Any
Train = Callable[..., Run]
TENSOR = ["--parallelism.tensor_parallel_degree", "2"]
CHECKPOINTS = ["--checkpoint.enable", "--checkpoint.interval", "3", "--checkpoint.no_last_save_model_only"]
LENGTH, BATCH = 64, 8


@pytest.fixture(scope="module")
def alone(run_once: Train) -> Run:
    """One rank, whose losses all others must have."""
    return run_once("single", 1, "--training.local_batch_size", "8")


@pytest.fixture(scope="module")
def tensor(run_once: Train) -> Run:
    """Two ranks that share each matrix product."""
    return run_once("tp2", 2, *TENSOR, *CHECKPOINTS, "--training.local_batch_size", "8")


@pytest.fixture(scope="module")
def sharded_tensor(run_once: Train) -> Run:
    """Two ranks by FSDP2, each of two that share each matrix product."""
    return run_once("fsdp2_tp2", 4, *TENSOR, *CHECKPOINTS, "--training.local_batch_size", "4")


def assert_same_curve(run: Run, alone: Run) -> None:
    """Every rank knows the losses and gradient norms that one rank has."""
    for rank in range(run.manifest()["world_size"]):
        assert run.losses(rank) == pytest.approx(alone.losses(), rel=1e-5)
    norms = [[line["grad_norm"] for line in lines] for lines in (run.lines(), alone.lines())]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    assert max(norms[0]) > 1, "gradients were clipped"


def groups(run: Run, rank: int) -> set[str]:
    """What a rank calls the process groups that it is in."""
    text = (run.folder / "dumps" / f"groups_{rank}.json").read_text()
    return {group["desc"] for group in json.loads(text)["groups"].values()}


def assert_tokens_are_counted_once(run: Run) -> None:
    """The tokens of all ranks are those of the step, however many ranks work on one sequence."""
    ranks = range(run.manifest()["world_size"])
    assert sum(run.lines(rank)[0]["tokens"] for rank in ranks) == LENGTH * BATCH


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tensor", "sharded_tensor"])
def test_losses_are_equal_where_ranks_share_a_product(request: pytest.FixtureRequest, alone: Run, name: str) -> None:
    run = request.getfixturevalue(name)
    assert_same_curve(run, alone)
    assert_tokens_are_counted_once(run)
    assert run.manifest()["mesh"]["tp"] == 2
    assert run.manifest()["parameters"] == alone.manifest()["parameters"]


@pytest.mark.slow
def test_a_copy_of_tensor_parallel_ranks_averages_gradients(run_once: Train, alone: Run) -> None:
    copies = ["--parallelism.data_parallel_replicate_degree", "2"]
    run = run_once("ddp2_tp2", 4, *TENSOR, *copies, "--training.local_batch_size", "4")
    assert_same_curve(run, alone)
    assert groups(run, rank=3) >= {"mesh_dp_replicate", "mesh_tp"}


@pytest.mark.slow
def test_groups_are_named_after_their_axis(sharded_tensor: Run) -> None:
    assert groups(sharded_tensor, rank=1) == {"default_pg", "mesh_dp_shard", "mesh_tp"}


@pytest.mark.slow
def test_tensor_parallel_ranks_resume_exactly(train: Train, tensor: Run, tmp_path: Path) -> None:
    shutil.copytree(tensor.folder / "checkpoint" / "step-3", tmp_path / "checkpoint" / "step-3")
    resumed = train(tmp_path, 2, *TENSOR, *CHECKPOINTS, "--training.local_batch_size", "8")
    assert resumed.losses() == {step: loss for step, loss in tensor.losses().items() if step > 3}, resumed.output


@pytest.mark.slow
def test_what_tensor_parallel_ranks_saved_loads_on_one(train: Train, sharded_tensor: Run, tmp_path: Path) -> None:
    shutil.copytree(sharded_tensor.folder / "checkpoint", tmp_path / "checkpoint")
    flags = ["--checkpoint.load_step", "3", "--checkpoint.load_only", "--training.local_batch_size", "8"]
    single = train(tmp_path, 1, *CHECKPOINTS, *flags)
    expected = {step: loss for step, loss in sharded_tensor.losses().items() if step > 3}
    assert single.losses() == pytest.approx(expected, rel=1e-5), single.output


def job(model: str = "llama3", **parallelism: int) -> JobConfig:
    """A configuration of the small model."""
    config = JobConfig(parallelism=Parallelism(**parallelism))  # type: ignore[arg-type]
    config.model.name = model
    return config


def test_a_mesh_fills_the_world() -> None:
    found = validate(job(tensor_parallel_degree=2, data_parallel_replicate_degree=2), 8)
    assert found == Degrees(dp_replicate=2, dp_shard=2, tp=2)
    assert (found.data_parallel, found.per_batch) == (4, 2)


@pytest.mark.parametrize(
    ("config", "ranks", "says", "hint"),
    [
        (job(tensor_parallel_degree=2), 3, "tensor_parallel_degree 2 is not 3 ranks", "start 4 processes"),
        (
            job(tensor_parallel_degree=2, data_parallel_shard_degree=3),
            4,
            "data_parallel_shard_degree 3 x tensor_parallel_degree 2 is not 4 ranks",
            "set parallelism.data_parallel_shard_degree to 2",
        ),
        (job(tensor_parallel_degree=0), 2, "parallelism.tensor_parallel_degree = 0", "give 1 or more"),
        (job(tensor_parallel_degree=4), 4, "tensor_parallel_degree 4 does not divide 2 key-value heads", "divisor"),
        (job("llama4", tensor_parallel_degree=2), 2, "experts cannot be trained", "expert_parallel_degree"),
        (job("flux"), 1, "there is no model 'flux'", "llama3"),
        (job("models.llama3"), 1, "there is no model 'models.llama3'", "llama3"),
    ],
)
def test_what_no_run_can_do_is_refused_before_it_starts(config: JobConfig, ranks: int, says: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(config, ranks)
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_compiled_tensor_parallelism_is_refused() -> None:
    config = job(tensor_parallel_degree=2)
    config.compile.enable = True
    with pytest.raises(ConfigError, match=r"compile\.enable with parallelism\.tensor_parallel_degree 2"):
        validate(config, 2)
