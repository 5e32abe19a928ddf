"""Test matrix products in float8: which settings fit, and training with them if torchao is installed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trainer.config import ConfigError, explain, load, load_for_training, startup_notes, validate
from trainer.config.converters import check_devices, is_installed
from trainer.models.decoder import build_model
from trainer.step import convert, is_converted

Run = Any
Train = Callable[..., Run]
FLOAT8 = ("--model.converters", "float8")
EMULATED = (*FLOAT8, "--float8.emulate")
GATHERED = ("--float8.enable_fsdp_float8_all_gather", "--float8.precompute_float8_dynamic_scale_for_fsdp")
TENSOR = ("--parallelism.tensor_parallel_degree", "2")
ROWS = ("--float8.recipe_name", "rowwise_with_gw_hp")
with_torchao = pytest.mark.skipif(not is_installed("torchao"), reason="torchao is not installed")


@pytest.mark.parametrize("name", ["float8", "quantize.linear.float8", "quantize.dense.float8"])
def test_every_name_of_the_converter_is_understood(name: str) -> None:
    [report] = explain(None, ["--model.converters", name])
    assert report.value == ["float8"]
    assert report.refused != is_installed("torchao")
    assert report.refused is False or "pip install torchao" in str(report.suggestion)


@pytest.mark.parametrize("section", ["float8", "quantize.linear.float8", "quantize.dense.float8"])
def test_the_settings_of_every_version_are_understood(tmp_path: Path, section: str) -> None:
    path = tmp_path / "x.toml"
    path.write_text(f'[{section}]\nrecipe_name = "rowwise"\nfilter_fqns = ["output", "wq"]\nemulate = true\n')
    config = load(path)
    assert (config.float8.recipe_name, config.float8.filter_fqns, config.float8.emulate) == (
        "rowwise",
        ["output", "wq"],
        True,
    )
    [note] = startup_notes(["--config", str(path)])
    assert note.startswith("without effect: float8.recipe_name, float8.filter_fqns, float8.emulate (add --model.conv")


@pytest.mark.parametrize(
    ("flags", "ranks", "says"),
    [
        ((*GATHERED[:1], "--float8.recipe_name", "rowwise"), 2, "with float8.recipe_name rowwise"),
        (GATHERED[1:], 2, "without float8.enable_fsdp_float8_all_gather"),
        (GATHERED[:1], 1, "no weight is sharded by FSDP"),
        (ROWS, 1, "rowwise_with_gw_hp without FSDP"),
    ],
)
def test_settings_that_do_not_fit_are_refused(flags: tuple[str, ...], ranks: int, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        validate(load(None, [*EMULATED, *flags]), ranks)
    assert caught.value.hint
    assert validate(load(None, flags), ranks), "without the converter they mean nothing"


def test_a_device_without_float8_is_refused_unless_it_emulates() -> None:
    for capability, name in ((None, "a CPU"), ((8, 0), "compute capability 8.0")):
        with pytest.raises(ConfigError, match=name) as caught:
            check_devices(load(None, FLOAT8), capability)
        assert "--float8.emulate" in caught.value.hint
        check_devices(load(None, EMULATED), capability)
    check_devices(load(None, FLOAT8), (9, 0))
    check_devices(load(None, [*FLOAT8, "--comm.mode", "fake_backend"]), None)


def test_a_dry_run_needs_no_torchao() -> None:
    config = load_for_training([*FLOAT8, "--comm.mode", "fake_backend"])
    assert config.model.converters == ["float8"]


def test_layers_are_left_out_by_a_part_of_their_name_or_by_their_size() -> None:
    layer = torch.nn.Linear(32, 16)
    assert is_converted(layer, "layers.0.attention.wq", ["output"])
    assert not is_converted(layer, "layers.0.attention.wq", ["attention.w"])
    assert not is_converted(torch.nn.Linear(32, 24), "output", [])
    assert not is_converted(torch.nn.Embedding(32, 16), "tok_embeddings", [])
    with pytest.raises(ConfigError, match="no linear layer to convert"):
        convert(build_model(load(None, [])), load(None, [*FLOAT8, "--float8.filter_fqns", "w,output"]))


@with_torchao
@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "flags", "near"),
    [
        (1, (), 1e-6),
        (2, TENSOR, 1e-3),
        (2, ("--training.local_batch_size", "4", *GATHERED), 0.02),
        (2, ("--training.local_batch_size", "4", *ROWS), 0.02),
    ],
)
def test_rounded_products_train_almost_the_same(
    train: Train, run_once: Train, tmp_path: Path, ranks: int, flags: tuple[str, ...], near: float
) -> None:
    """Products are emulated; another order of a sum may round to another float8 value, so losses are only near."""
    exact = run_once("single", 1, "--training.local_batch_size", "8")
    rounded = run_once("float8", 1, "--training.local_batch_size", "8", *EMULATED)
    run = train(tmp_path, ranks, "--training.local_batch_size", "8", *EMULATED, *flags)
    assert run.returncode == 0, run.output
    assert run.losses() == pytest.approx(exact.losses(), rel=0.02)
    assert run.losses() != pytest.approx(exact.losses(), rel=1e-5)
    assert run.losses() == pytest.approx(rounded.losses(), rel=near)


@with_torchao
@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 9), reason="no device with float8"
)
@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_a_device_computes_in_float8(train: Train, run_once: Train, tmp_path: Path, recipe: str) -> None:
    exact = run_once("single", 1, "--training.local_batch_size", "8")
    run = train(tmp_path, 1, "--training.local_batch_size", "8", *FLOAT8, "--float8.recipe_name", recipe)
    assert run.returncode == 0, run.output
    assert run.losses() == pytest.approx(exact.losses(), rel=0.02)
    assert run.losses() != exact.losses()
