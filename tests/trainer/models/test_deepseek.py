"""DeepSeek-V3 with every kind of parallelism: the same losses and gradient norms as on one rank."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from mesh_flags import BRIEF, CONTEXT, EXPERT, PIPELINE, TENSOR, assert_same_curve, batch

from analyzers import memory, run
from trainer.config import JobConfig
from trainer.models.decoder import build_model
from trainer.models.moe import GroupedRouter
from workbench.commands.estimate import estimate
from workbench.launch.plan import Request

Train = Callable[..., Any]
DEEPSEEK = ["--model.name", "deepseek_v3"]


MESHES: dict[str, tuple[int, list[str]]] = {
    "tp2": (2, [*batch(8), *TENSOR, "--activation_checkpoint.mode", "full"]),
    "cp2_ep2": (2, [*batch(8), *CONTEXT, *EXPERT]),
    "fsdp2_tp2": (4, [*batch(4), *TENSOR]),
    "tp2_ep2": (4, [*batch(4), *TENSOR, *EXPERT]),
    "pp2_tp2": (4, [*batch(8), *PIPELINE, *TENSOR]),
}
"""{name of a mesh: number of ranks, flags}."""


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_losses_are_equal_on(mesh: str, run_once: Train) -> None:
    alone = run_once("deepseek", 1, *DEEPSEEK, *batch(8))
    ranks, flags = MESHES[mesh]
    assert_same_curve(run_once(f"deepseek_{mesh}", ranks, *DEEPSEEK, *flags, *BRIEF), alone)


@pytest.mark.slow
def test_its_memory_is_foreseen(run_once: Train) -> None:
    flags = [*batch(4), "--profiling.enable_memory_snapshot", "--profiling.profile_freq", "6", *EXPERT]
    folder = run_once("deepseek_memory", 2, *DEEPSEEK, *flags).folder
    overrides = ("--training.seq_len", "64", *flags, "--activation_checkpoint.mode", "none")
    request = Request(module="deepseek_v3", config="deepseek_v3_debugmodel", nproc=2, overrides=overrides)
    [rank] = estimate(request, None).data.ranks
    for device in memory.analyze(run.discover(folder).of(run.Kind.SNAPSHOT)).data.devices:
        assert rank.peak_bytes == pytest.approx(device.peak_allocated_bytes, rel=0.1)
        for name in ("parameters", "optimizer_state"):
            assert rank.categories[name] == pytest.approx(device.categories[name], rel=0.01), name


def test_a_token_uses_experts_of_its_best_groups() -> None:
    """Worked by hand: the groups' sums of their two best are 1.1, 1.3 and 0.9, so the best expert, 0, is not used."""
    router = GroupedRouter(4, 9, top_k=2, groups=3, top_groups=1, scale=2.5)
    scores = torch.tensor([[0.9, 0.2, 0.1, 0.7, 0.5, 0.6, 0.5, 0.4, 0.3]])
    assert router.choose(scores).tolist() == [[3, 5]]
    torch.testing.assert_close(router.weigh(torch.tensor([[0.6, 0.4]])), torch.tensor([[1.5, 1.0]]))


def test_the_published_size_has_its_number_of_parameters() -> None:
    config = JobConfig()
    config.model.name, config.model.flavor, config.training.seq_len = "deepseek_v3", "671B", 16
    model = build_model(config)
    assert sum(weight.numel() for weight in model.parameters()) == pytest.approx(671e9, rel=1e-3)
    assert model.flops_per_token(0) == pytest.approx(6 * 36.6e9, rel=0.02)  # 37.5e9 with the embedding
