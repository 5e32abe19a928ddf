"""DeepSeek-V3 with every kind of parallelism: the same losses and gradient norms as on one rank."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from mesh_flags import BRIEF, CONTEXT, EXPERT, PIPELINE, TENSOR, assert_same_curve, batch

from analyzers import memory, run
from trainer.config import JobConfig
from trainer.config.hf_format import check_same_shape, describe
from trainer.models.decoder import build_model
from trainer.models.deepseek_v3.config_registry import FLAVORS, FORMAT
from trainer.models.deepseek_v3.model import sharpness
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


def test_the_published_config_is_that_of_its_flavor(tmp_path: Path) -> None:
    """As published: with the rotary scaling that reads 40 times the length of 4096 tokens."""
    published = {
        "model_type": "deepseek_v3", "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128,
        "vocab_size": 129280, "max_position_embeddings": 163840, "rope_theta": 10000,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(published))
    check_same_shape("deepseek_v3", "671B", FLAVORS["671B"], 4096, tmp_path)
    assert sharpness(FLAVORS["671B"]) == pytest.approx(1.8739, abs=1e-4)
    scaling = {"rope_type": "yarn", "truncate": True, **published["rope_scaling"]}
    del scaling["type"]
    assert describe(FORMAT, FLAVORS["671B"])["rope_scaling"] == scaling
