"""Test settings that earlier versions refused: offloading, memory budget, pinned checkpoints, wandb, sections."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader

from trainer.config import ConfigError, JobConfig, explain, load
from trainer.config.checks import validate
from trainer.models.decoder import build_model, init_weights
from trainer.parallel.plan import apply_activation_checkpointing, compile_blocks

Train = Callable[..., object]
REGISTRY = '''
from dataclasses import dataclass, field
from trainer.config import JobConfig
from trainer.config.converters import register
from trainer.config.sections import Training

@dataclass
class Freezing:
    layers: int = 0
    """Blocks that are not trained."""
    names: list[str] = field(default_factory=list)
    quiet: bool = False

@dataclass
class MyTraining(Training):
    note: str | None = None

@dataclass
class Mine(JobConfig):
    freezing: Freezing = field(default_factory=Freezing)
    training: MyTraining = field(default_factory=MyTraining)

@register("freeze")
def freeze(model, config):
    for block in list(model.layers.values())[: config.freezing.layers]:
        block.requires_grad_(False)

def small():
    return Mine()
'''
OFFLOAD = ("--training.enable_cpu_offload", "--checkpoint.enable", "--checkpoint.async_mode", "async_with_pinned_mem")
BUDGET = ("--activation_checkpoint.mode", "memory_budget", "--compile.enable")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Fixture: the name of a user's package, different in each test because Python imports a name only once."""
    name = f"mine_{tmp_path.name}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "config_registry.py").write_text(REGISTRY)
    monkeypatch.syspath_prepend(tmp_path)
    return name


@pytest.mark.slow
def test_offloading_changes_no_loss(train: Train, tmp_path: Path) -> None:
    """FSDP over one rank keeps the weights in the CPU's memory; on a CPU this gives the same numbers."""
    short = ("--training.steps", "3")
    plain, offloaded = train(tmp_path / "plain", 1, *short), train(tmp_path / "offloaded", 1, *short, *OFFLOAD)
    assert offloaded.returncode == 0, offloaded.output
    assert offloaded.losses() == plain.losses()
    assert "without a device checkpoints are copied to ordinary memory" in offloaded.output
    assert len(offloaded.manifest()["notes"]) == 1
    saved = FileSystemReader(tmp_path / "offloaded" / "checkpoint" / "step-3").read_metadata()
    assert "model.tok_embeddings.weight" in saved.state_dict_metadata


def kept_bytes(budget: str) -> tuple[float, int]:
    """Return the loss of the debug model, and the bytes that its forward pass keeps in addition to the weights."""
    torch._dynamo.reset()
    flags = ("--compile.backend", "aot_eager_decomp_partition", "--activation_checkpoint.memory_budget", budget)
    config = load(None, [*BUDGET, *flags, "--training.seq_len", "32"])
    model = build_model(config)
    apply_activation_checkpointing(model, config.activation_checkpoint, "unused")
    compile_blocks(model, config.compile)
    model.to_empty(device="cpu")
    init_weights(model, 1)
    weights, kept = {p.data_ptr() for p in model.parameters()}, {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = model(torch.arange(64).reshape(2, 32)).float().square().mean()
    loss.backward()
    return loss.item(), sum(size for address, size in kept.items() if address not in weights)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # those of the compiler itself
def test_a_smaller_budget_keeps_less() -> None:
    runs = [kept_bytes(budget) for budget in ("1", "0.5", "0")]
    losses, sizes = zip(*runs, strict=True)
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)
    assert sizes[0] > 1.3 * sizes[1]
    assert sizes[1] > 1.3 * sizes[2]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (BUDGET[:2], "blocks are not compiled"),
        ((*BUDGET, "--compile.components", "loss"), "blocks are not compiled"),
        ((*BUDGET, "--compile.backend", "eager"), "by backend eager"),
    ],
)
def test_a_budget_needs_the_compiler(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        validate(load(None, flags), 1)
    assert "--compile.enable" in caught.value.hint
    assert validate(load(None, BUDGET), 1).dp_shard == 1


def test_wandb_is_refused_only_where_it_is_missing() -> None:
    [report] = explain(None, ["--metrics.enable_wandb"])
    assert report.refused == (importlib.util.find_spec("wandb") is None)
    assert not report.refused or "pip install wandb" in str(report.suggestion)


@pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="wandb is not installed")
def test_wandb_writes_without_a_network(train: Train, tmp_path: Path) -> None:
    done = train(tmp_path, 1, "--training.steps", "2", "--metrics.enable_wandb")
    assert done.returncode == 0, done.output
    [log] = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    assert b"loss_metrics/global_avg_loss" in log.read_bytes()


def test_own_sections_and_keys_are_read_like_ours(module: str, tmp_path: Path) -> None:
    source = ["--module", module, "--config", "small"]
    flags = ["--freezing.layers", "2", "--freezing.names", "a,b", "--freezing.quiet", "--training.note", "hello"]
    config = load(None, [*source, *flags, "--training.steps", "7"])
    assert (config.freezing.layers, config.freezing.names, config.freezing.quiet) == (2, ["a", "b"], True)
    assert (config.training.note, config.training.steps) == ("hello", 7)
    assert {report.cls for report in explain(None, [*source, *flags])} == {"honoured"}
    with pytest.raises(ConfigError, match=r"freezing\.layers = 'many' is not an integer") as caught:
        load(None, [*source, "--freezing.layers", "many"])
    assert "Blocks that are not trained" in caught.value.hint
    with pytest.raises(ConfigError) as caught:
        load(None, [*source, "--training.note", "1", "2"])
    assert caught.value.hint == "give a string, or None"
    with pytest.raises(ConfigError) as caught:
        load(None, [*source, "--freezing.layer", "2"])
    assert "freezing.layers instead of freezing.layer" in caught.value.hint
    with pytest.raises(ConfigError, match="unknown key"):
        load(None, ["--freezing.layers", "2"])
    assert type(load(None, [])) is JobConfig


def test_a_converter_is_known_once_its_module_is_imported(module: str, tmp_path: Path) -> None:
    source = ["--module", module, "--config", "small"]
    [report, *_] = explain(None, [*source, "--model.converters", "freeze", "--freezing.layers", "1"])
    assert (report.cls, report.refused) == ("honoured", False)
    [report] = explain(None, [*source, "--model.converters", "mx"])
    assert report.refused
    assert "config_registry of your own" in str(report.suggestion)
    model = build_model(load(None, [*source, "--model.converters", "freeze", "--freezing.layers", "1"]))
    assert {name for name, p in model.named_parameters() if not p.requires_grad} == {
        name for name, _ in model.named_parameters() if name.startswith("layers.0.")
    }


@pytest.mark.slow
def test_frozen_layers_train_on(module: str, train: Train, tmp_path: Path) -> None:
    flags = ("--model.converters", "freeze", "--freezing.layers", "2", "--training.steps", "3")
    done = train(tmp_path / "run", 1, "--module", module, "--config", "small", *flags)
    assert done.returncode == 0, done.output
    assert done.losses()[3] < done.losses()[1]
    assert json.loads((tmp_path / "run" / "run.json").read_text())["config"]["freezing"]["layers"] == 2
