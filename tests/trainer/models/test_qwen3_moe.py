"""Qwen3 with experts and every kind of parallelism: the same losses and gradient norms as on one rank."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mesh_flags import BRIEF, CONTEXT, COPIES, EXPERT, PIPELINE, TENSOR, assert_same_curve, batch

from analyzers import memory, run
from trainer.config import JobConfig, explain, load
from trainer.models.decoder import build_model
from trainer.models.moe import SoftmaxRouter
from workbench.commands.estimate import estimate
from workbench.launch.plan import Request

Train = Callable[..., Any]
MOE = ["--model.name", "qwen3_moe"]


MESHES: dict[str, tuple[int, list[str]]] = {
    "fsdp2_ep2": (2, [*batch(4), *EXPERT, "--activation_checkpoint.mode", "full"]),
    "tp2": (2, [*batch(8), *TENSOR]),
    "cp2": (2, [*batch(8), *CONTEXT]),
    "ddp2_tp2": (4, [*batch(4), *TENSOR, *COPIES]),
    "tp2_ep2": (4, [*batch(4), *TENSOR, *EXPERT]),
    "pp2_ep2": (4, [*batch(4), *PIPELINE, *EXPERT]),
}
"""{name of a mesh: number of ranks, flags}."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "mesh", [pytest.param(mesh, marks=[pytest.mark.rare] * (mesh in ("tp2", "ddp2_tp2"))) for mesh in MESHES]
)
def test_losses_are_equal_on(mesh: str, run_once: Train) -> None:
    alone = run_once("qwen3_moe", 1, *MOE, *batch(8))
    ranks, flags = MESHES[mesh]
    assert_same_curve(run_once(f"qwen3_moe_{mesh}", ranks, *MOE, *flags, *BRIEF), alone)


@pytest.mark.slow
@pytest.mark.rare
def test_its_memory_is_foreseen(run_once: Train) -> None:
    flags = [*batch(4), "--profiling.enable_memory_snapshot", "--profiling.profile_freq", "6", *EXPERT]
    folder = run_once("qwen3_moe_memory", 2, *MOE, *flags).folder
    overrides = ("--training.seq_len", "64", *flags, "--activation_checkpoint.mode", "none")
    request = Request(module="qwen3_moe", config="qwen3_moe_debugmodel", nproc=2, overrides=overrides)
    [rank] = estimate(request, None).data.ranks
    for device in memory.analyze(run.discover(folder).of(run.Kind.SNAPSHOT)).data.devices:
        assert rank.peak_bytes == pytest.approx(device.peak_allocated_bytes, rel=0.1)
        for name in ("parameters", "optimizer_state"):
            assert rank.categories[name] == pytest.approx(device.categories[name], rel=0.01), name


@pytest.mark.parametrize(("norm_weights", "expected"), [(True, [0.75, 0.25]), (False, [0.6, 0.2])])
def test_a_token_weighs_its_experts_by_a_softmax_over_all(norm_weights: bool, expected: list[float]) -> None:
    router = SoftmaxRouter(4, 3, top_k=2, norm_weights=norm_weights)
    scores = router.score(torch.tensor([[3.0, 1.0, 1.0]]).log())
    torch.testing.assert_close(scores, torch.tensor([[0.6, 0.2, 0.2]]))
    torch.testing.assert_close(router.weigh(scores[:, :2]), torch.tensor([expected]))


@pytest.mark.parametrize(
    ("flavor", "parameters", "active"), [("30B-A3B", 30_532_122_624, 3.35e9), ("235B-A22B", 235_093_634_560, 22.2e9)]
)
def test_flavors_have_the_published_number_of_parameters(flavor: str, parameters: int, active: float) -> None:
    config = JobConfig()
    config.model.name, config.model.flavor, config.training.seq_len = "qwen3_moe", flavor, 16
    model = build_model(config)
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    embedding = model.tok_embeddings.weight.numel()
    assert model.flops_per_token(0) == pytest.approx(6 * (active - embedding), rel=0.02)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("debugmodel_moe", "debugmodel"), ("30B-A3B", "30B-A3B"), ("235B-A22B", "235B-A22B")],
)
def test_the_names_that_torchtitan_has_for_it_are_known(theirs: str, ours: str, tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_text(f'[model]\nname = "qwen3"\nflavor = "{theirs}"\n')
    model = load(file).model
    assert (model.name, model.flavor) == ("qwen3_moe", ours)
    assert not any(report.refused for report in explain(file))
    assert load(None, ["--model.name", "qwen3", "--model.flavor", theirs]).model == model
