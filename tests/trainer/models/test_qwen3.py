"""Qwen3 with every kind of parallelism: the same losses and gradient norms as on one rank, with tied weights, too."""

from collections.abc import Callable
from typing import Any

import pytest
from mesh_flags import BRIEF, COMPILED, CONTEXT, COPIES, PIPELINE, TENSOR, assert_same_curve, batch

from analyzers import memory, run
from trainer.config import JobConfig
from trainer.models.decoder import build_model
from workbench.commands.estimate import estimate
from workbench.launch.plan import Request

Train = Callable[..., Any]
QWEN3 = ["--model.name", "qwen3"]


MESHES: dict[str, tuple[int, list[str]]] = {
    "fsdp2": (2, [*batch(4), "--activation_checkpoint.mode", "full"]),
    "ddp2": (2, [*batch(4), *COPIES]),
    "cp2": (2, [*batch(8), *CONTEXT]),
    "fsdp2_tp2": (4, [*batch(4), *TENSOR]),
    "ddp2_tp2_compiled": (4, [*batch(4), *TENSOR, *COPIES, *COMPILED]),
}
"""{name of a mesh: number of ranks, flags}."""


@pytest.mark.slow
@pytest.mark.parametrize("mesh", [*list(MESHES)[:-1], pytest.param("ddp2_tp2_compiled", marks=pytest.mark.rare)])
def test_tied_weights_train_the_same_on(mesh: str, run_once: Train) -> None:
    alone = run_once("qwen3", 1, *QWEN3, *batch(8))
    ranks, flags = MESHES[mesh]
    assert_same_curve(run_once(f"qwen3_{mesh}", ranks, *QWEN3, *flags, *BRIEF), alone)


SNAPSHOTS = ["--profiling.enable_memory_snapshot", "--profiling.profile_freq", "6", *batch(4)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "flags"),
    [pytest.param("memory_one", 1, [], marks=pytest.mark.rare), ("memory_fsdp2_tp2", 4, TENSOR)],
)
def test_the_memory_of_tied_weights_is_foreseen(name: str, ranks: int, flags: list[str], run_once: Train) -> None:
    folder = run_once(f"qwen3_{name}", ranks, *QWEN3, *SNAPSHOTS, *flags).folder
    overrides = ("--training.seq_len", "64", *SNAPSHOTS, *flags, "--activation_checkpoint.mode", "none")
    told = estimate(Request(module="qwen3", config="qwen3_debugmodel", nproc=ranks, overrides=overrides), None)
    [rank] = told.data.ranks
    for device in memory.analyze(run.discover(folder).of(run.Kind.SNAPSHOT)).data.devices:
        # One buffer of 64 KiB more or less lives at the peak, as gloo ends collectives sooner or later.
        assert rank.peak_bytes == pytest.approx(device.peak_allocated_bytes, rel=0.03)
        for category in ("parameters", "optimizer_state"):
            assert rank.categories[category] == pytest.approx(device.categories[category], rel=0.01), category


@pytest.mark.slow
@pytest.mark.parametrize(("name", "flags"), [("pp2_tp2", TENSOR), ("pp2_fsdp2", batch(4))])
def test_parts_of_a_pipeline_train_the_same(name: str, flags: list[str], run_once: Train) -> None:
    untied = [*QWEN3, "--model.flavor", "debugmodel_untied"]
    alone = run_once("qwen3_untied", 1, *untied, *batch(8))
    assert_same_curve(run_once(f"qwen3_{name}", 4, *untied, *batch(8), *PIPELINE, *flags, *BRIEF), alone)


@pytest.mark.parametrize(
    ("flavor", "parameters"),
    [("0.6B", 596_049_920), ("1.7B", 1_720_574_976), ("4B", 4_022_468_096), ("8B", 8_190_735_360),
     ("14B", 14_768_307_200), ("32B", 32_762_123_264)],
)  # fmt: skip
def test_flavors_have_the_published_number_of_parameters(flavor: str, parameters: int) -> None:
    config = JobConfig()
    config.model.name, config.model.flavor, config.training.seq_len = "qwen3", flavor, 16
    model = build_model(config)
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    embedding = 0 if model.args.enable_weight_tying else model.tok_embeddings.weight.numel()
    assert model.flops_per_token(0) == 6 * (parameters - embedding)
