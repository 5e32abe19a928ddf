"""A step without tensor values that simulates any number of ranks, without devices."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from ranks import run_job
from trainer.config import ConfigError, JobConfig, load_for_training, validate
from trainer.dry_run import world_size
from wild import DATA

TOMLS = sorted((DATA / "titan_toml").glob("**/*.toml"))
FAKE, LOCAL = (["--comm.mode", mode] for mode in ("fake_backend", "local_tensor"))
NOT_HERE = (
    "there is no model",
    "has no flavor",
    "there is no torchft",
)
"""Reasons for which files of torchtitan are refused.

The trainer lacks their models or flavors, or another package restarts ranks.
"""


def dry_run(folder: Path, ranks: int, *flags: str) -> Any:
    """Run the trainer in a single process that simulates `ranks` ranks."""
    return run_job("trainer", [*flags, *FAKE], folder, NGPU=str(ranks))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "model", "mesh", "described"),
    [
        (32, "llama3", {"tensor": 2, "context": 2, "pipeline": 2}, "dp_shard 4 x cp 2 x tp 2 x pp 2"),
        (64, "llama4", {"expert": 8}, "dp_shard 64 x ep 8"),
        (16, "llama3", {"data_parallel_replicate": 16}, "dp_replicate 16"),
    ],
)
def test_a_step_of_any_mesh_runs_in_one_process(
    tmp_path: Path, ranks: int, model: str, mesh: dict[str, int], described: str
) -> None:
    names = {"data_parallel_replicate": "data_parallel_replicate_degree"}
    degrees = [
        word
        for name, degree in mesh.items()
        for word in (f"--parallelism.{names.get(name, f'{name}_parallel_degree')}", str(degree))
    ]
    ended = dry_run(tmp_path, ranks, "--model.name", model, "--training.seq_len", "64", *degrees)
    assert ended.returncode == 0, ended.output
    assert f"Dry run of {ranks} ranks in this process: {model} debugmodel, mesh " in ended.output
    assert set(ended.output.partition(", mesh ")[2].splitlines()[0].split(" x ")) == set(described.split(" x "))
    assert f"the configuration can be trained on {ranks} ranks" in ended.output


@pytest.mark.slow
def test_a_large_model_runs_a_few_of_its_equal_layers(tmp_path: Path) -> None:
    flags = ["--module", "llama3", "--config", "llama3_70b", "--parallelism.tensor_parallel_degree", "8"]
    ended = dry_run(tmp_path, 256, *flags)
    assert ended.returncode == 0, ended.output
    assert "Model: 70,553,706,496 parameters" in ended.output
    assert "a step of its 80 layers (4 of them; the others are alike)" in ended.output


@pytest.mark.slow
def test_a_step_on_local_tensors_is_that_of_one_rank(run_once: Any, train: Any, tmp_path: Path) -> None:
    batch = ["--training.local_batch_size", "8"]
    local = train(tmp_path, 1, *batch, *LOCAL, "--parallelism.tensor_parallel_degree", "2", NGPU="2")
    assert local.returncode == 0, local.output
    step = run_once("single", 1, *batch).lines()[0]
    loss, norm = re.findall(r"loss: +([\d.]+)  grad_norm: +([\d.]+)", local.output)[0]
    assert (float(loss), float(norm)) == pytest.approx((step["loss"], step["grad_norm"]), rel=1e-4)
    assert "disagree" not in local.output


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("data_parallel_shard_degree", 2, "FSDP2 frees memory"),
        ("data_parallel_replicate_degree", 2, "DDP reads gradients"),
        ("context_parallel_degree", 2, "other positions of a sequence"),
        ("pipeline_parallel_degree", 2, "different programs"),
    ],
)
def test_what_does_not_run_on_local_tensors_is_refused_with_the_reason(key: str, value: int, says: str) -> None:
    config = load_for_training([*LOCAL, f"--parallelism.{key}", str(value)])
    with pytest.raises(ConfigError) as caught:
        validate(config, 2)
    assert f"parallelism.{key} {value}" in caught.value.message
    assert says in caught.value.message
    assert "tensor_parallel_degree (1)" in caught.value.hint


def test_a_dry_run_reads_no_data_and_so_needs_none() -> None:
    flags = ["--training.dataset", "c4"]
    assert load_for_training([*flags, *FAKE]).training.dataset == "c4"
    with pytest.raises(ConfigError, match="'c4' is not shipped"):
        load_for_training(flags)


@pytest.mark.parametrize(("variables", "expected"), [({"NGPU": "12"}, 12), ({"WORLD_SIZE": "3"}, 3), ({}, 1)])
def test_the_number_of_ranks_is_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: int
) -> None:
    for name in ("NGPU", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert world_size() == expected


@pytest.mark.parametrize("value", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_of_ranks_is_refused(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("NGPU", value)
    with pytest.raises(ConfigError, match="NGPU"):
        world_size()


def smallest_world(config: JobConfig) -> int:
    """Return the number of ranks that a configuration needs, with eight shards if it leaves their number open."""
    mesh = config.parallelism
    shards = 8 if mesh.data_parallel_shard_degree == -1 else mesh.data_parallel_shard_degree
    degrees = (
        mesh.data_parallel_replicate_degree, mesh.tensor_parallel_degree, mesh.pipeline_parallel_degree,
        mesh.context_parallel_degree, shards,
    )  # fmt: skip
    return math.prod(degrees)


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.skipif(not TOMLS, reason="torchtitan's files are not here")
@pytest.mark.parametrize("path", TOMLS, ids=lambda p: str(p.relative_to(DATA / "titan_toml")))
def test_a_real_file_starts_or_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    flags = ["--job.config_file", str(path)]
    if reason := reason_refused([*flags, *FAKE]):
        assert any(known in reason for known in NOT_HERE), reason
        return
    ranks = smallest_world(load_for_training([*flags, *FAKE]))
    ended = dry_run(tmp_path, ranks, *flags)
    assert ended.returncode == 0, ended.output
    assert f"can be trained on {ranks} ranks" in ended.output


def reason_refused(flags: list[str]) -> str:
    """Return the reason why a configuration is refused; empty if it is accepted."""
    try:
        config = load_for_training(flags)
        validate(config, smallest_world(config))
    except ConfigError as error:
        return f"{error.message} {error.hint}"
    return ""
