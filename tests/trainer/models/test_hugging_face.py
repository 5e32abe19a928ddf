"""Exchange weights with the transformers package: ours load there with the same losses, and theirs load here."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from trainer.config import ConfigError, JobConfig, load_for_training, validate
from trainer.config.hf_format import read_shape
from trainer.data.loader import Loader, Share
from trainer.data.source import training_documents
from trainer.errors import CheckpointError
from trainer.hugging_face import INDEX, halves, load_weights, pairs, place_of, to_theirs
from trainer.models.decoder import build_model, init_weights
from trainer.models.llama3.config_registry import FORMAT

safetensors = pytest.importorskip("safetensors.torch")
BATCH, LENGTH, SEED = 8, 64, 7


def loss_of(folder: Path) -> float:
    """Return the loss of the first training batch, computed with the transformers package."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    inputs, labels = next(iter(Loader(training_documents(SEED), LENGTH, Share(BATCH))))
    with torch.no_grad():
        return float(cross_entropy(model(inputs).logits.flatten(0, 1), labels.flatten()))


@pytest.mark.slow
def test_weights_go_there_and_come_back(train: Callable[..., Any], tmp_path: Path) -> None:
    mesh = ["--parallelism.tensor_parallel_degree", "2", "--parallelism.pipeline_parallel_degree", "2"]
    saving = ["--checkpoint.enable", "--checkpoint.last_save_in_hf", "--training.steps", "2"]
    saved = train(tmp_path / "saved", 4, "--training.local_batch_size", str(BATCH), *mesh, *saving)
    assert saved.returncode == 0, saved.output
    folder = saved.folder / "checkpoint" / "step-2"
    assert len(list(folder.glob("*.safetensors"))) == 2
    loading = [
        "--checkpoint.load_only",
        "--checkpoint.initial_load_in_hf",
        "--checkpoint.initial_load_path",
        str(folder),
    ]
    loaded = train(tmp_path / "loaded", 2, "--training.local_batch_size", "4", *saving[:1], *loading)
    assert loaded.losses()[1] == pytest.approx(loss_of(folder), rel=1e-5), loaded.output


@pytest.mark.slow
def test_a_tied_model_is_fine_tuned_on_a_mesh_and_goes_on_elsewhere(train: Callable[..., Any], tmp_path: Path) -> None:
    """The first loss is that of the transformers package; step 2 is the same after a resume on another mesh."""
    theirs = tmp_path / "theirs"
    small_checkpoint(theirs, "Qwen3Config", tie_word_embeddings=True)
    shape = ["--model.name", "qwen3", "--model.flavor", "hf_assets", "--model.hf_assets_path", str(theirs)]
    loading = ["--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", str(theirs)]
    saving = ["--checkpoint.enable", "--checkpoint.interval", "1", "--checkpoint.last_save_in_hf"]
    flags = [*shape, *loading, *saving, "--training.steps", "2"]
    tensor = ["--training.local_batch_size", "4", "--parallelism.tensor_parallel_degree", "2"]
    run = train(tmp_path / "mesh", 4, *flags, *tensor)
    assert run.losses()[1] == pytest.approx(loss_of(theirs), rel=1e-5), run.output
    saved = run.folder / "checkpoint"
    assert set(read(saved / "step-2" / INDEX)["weight_map"]) == set(weights_of(theirs))
    assert loss_of(saved / "step-2") < loss_of(theirs)
    shutil.copytree(saved / "step-1", tmp_path / "alone" / "checkpoint" / "step-1")
    alone = train(tmp_path / "alone", 1, *flags, "--training.local_batch_size", "8")
    assert alone.losses() == pytest.approx({2: run.losses()[2]}, rel=1e-5), alone.output
    ours, same = (weights_of(folder / "checkpoint" / "step-2") for folder in (run.folder, alone.folder))
    for name, weight in ours.items():
        torch.testing.assert_close(weight, same[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("stated", "head_dim"), [({}, 128), ({"head_dim": 16}, 16)])
def test_heads_of_qwen3_have_128_features_unless_the_file_says_otherwise(
    stated: dict[str, int], head_dim: int, tmp_path: Path
) -> None:
    """`Qwen3Config` of the transformers package has this default whatever the number of heads."""
    shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    described = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_act": "silu"}
    sizes = {"intermediate_size": 96, "vocab_size": 320}
    # The cache of the hub has links in place of the files.
    (tmp_path / "blob").write_text(json.dumps(described | shape | sizes | stated))
    (tmp_path / "config.json").symlink_to("blob")
    assert read_shape("qwen3", str(tmp_path)).head_dim == head_dim


MIXTURES: dict[str, tuple[str, dict[str, object]]] = {
    "llama4": ("Llama4TextConfig", {
        "num_local_experts": 4, "num_experts_per_tok": 2, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 96,
        "use_qk_norm": False, "attn_temperature_tuning": False, "no_rope_layers": [1, 1],
    }),
    "deepseek_v3": ("DeepseekV3Config", {
        "num_key_value_heads": 4, "moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2,
        "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 16,
        "head_dim": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
    }),
    "qwen3_moe": ("Qwen3MoeConfig", {
        "moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2, "norm_topk_prob": True,
    }),
}  # fmt: skip
"""{our model: its configuration class in the transformers package, and settings}."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MIXTURES)
def test_experts_that_ranks_share_load_and_are_saved(name: str, train: Callable[..., Any], tmp_path: Path) -> None:
    """The loss of the first step is that of the transformers package; at a rate of 0 the step changes no weight."""
    theirs = tmp_path / "theirs"
    kind, settings = MIXTURES[name]
    small_checkpoint(theirs, kind, **settings)
    shape = ["--model.name", name, "--model.flavor", "hf_assets", "--model.hf_assets_path", str(theirs)]
    loading = ["--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", str(theirs)]
    saving = ["--checkpoint.enable", "--checkpoint.last_save_in_hf", "--training.steps", "1", "--optimizer.lr", "0"]
    tensor = ["--training.local_batch_size", "4", "--parallelism.tensor_parallel_degree", "2"]
    shared = [*tensor, "--parallelism.expert_parallel_degree", "2"]
    run = train(tmp_path / "mesh", 4, *shape, *loading, *saving, *shared)
    assert run.losses()[1] == pytest.approx(loss_of(theirs), rel=1e-5), run.output
    ours, same = weights_of(run.folder / "checkpoint" / "step-1"), weights_of(theirs)
    assert ours.keys() == same.keys()
    biases = {weight for weight in ours if weight.endswith("e_score_correction_bias")}
    assert all(weight.equal(same[name]) for name, weight in ours.items() if name not in biases)
    assert ("The routing biases of experts" in run.output) == (not biases)
    assert all(ours[name].any() for name in biases)


def small_checkpoint(folder: Path, kind: str, **settings: object) -> None:
    """Save a small model of the transformers package with random weights."""
    transformers = pytest.importorskip("transformers")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    others = {"head_dim": 16, "intermediate_size": 64, "vocab_size": 320, "initializer_range": 0.1}
    torch.manual_seed(5)
    described = getattr(transformers, kind)(**shape | others | settings)
    transformers.AutoModelForCausalLM.from_config(described).save_pretrained(folder)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in the only file of weights in a folder."""
    [file] = folder.glob("*.safetensors")
    weights: dict[str, torch.Tensor] = safetensors.load_file(file)
    return weights


def model() -> Any:
    """Return the small model on a CPU."""
    built = build_model(JobConfig())
    built.to_empty(device="cpu")
    init_weights(built, SEED)
    return built


@pytest.fixture(scope="module")
def weights() -> dict[str, torch.Tensor]:
    """Return the weights of the small model, by their names in the transformers package."""
    places = {name: place_of(name, FORMAT) for name, _ in model().named_parameters()}
    return {places[name].name: to_theirs(p.detach(), places[name].layout, 16) for name, p in model().named_parameters()}


def write(folder: Path, weights: dict[str, torch.Tensor], **described: object) -> Path:
    """Write weights to a folder in the format of the transformers package; `described` changes its config.json."""
    safetensors.save_file({name: weight.contiguous() for name, weight in weights.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(described))
    return folder


def test_names_and_features_come_back(weights: dict[str, torch.Tensor], tmp_path: Path) -> None:
    assert len(weights) == len(dict(model().named_parameters()))
    once = torch.arange(6.0).repeat(2)[:, None] + torch.tensor([[0.0, 10.0]])
    assert halves(once, 6)[:6, 0].tolist() == [0, 2, 4, 1, 3, 5]
    assert pairs(halves(once, 6), 6).equal(once)
    target = model()
    with torch.no_grad():
        for parameter in target.parameters():
            parameter.zero_()
    load_weights(target, JobConfig(), write(tmp_path, weights, rope_scaling=None))
    assert all(a.equal(b) for a, b in zip(target.parameters(), model().parameters(), strict=True))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rope_scaling": {"rope_type": "linear"}}, "positions are scaled (linear)"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "config.json: factor = None is not a number above 0"),
        ({"missing": "lm_head.weight"}, "no weight lm_head.weight"),
        ({"other": "model.norm.weight"}, "has the shape (3,)"),
        ({"index": {"weight_map": {"model.embed_tokens.weight": "../../x.safetensors"}}}, "x.safetensors"),
        ({"text": b"{}"}, "model.safetensors: "),
    ],
)
def test_other_weights_are_refused(
    weights: dict[str, torch.Tensor], tmp_path: Path, change: dict[str, Any], says: str
) -> None:
    kept = {name: weight for name, weight in weights.items() if name != change.get("missing")}
    if name := change.get("other"):
        kept[name] = torch.zeros(3)
    write(tmp_path, kept, rope_scaling=change.get("rope_scaling"))
    if index := change.get("index"):
        (tmp_path / INDEX).write_text(json.dumps(index))
    if text := change.get("text"):
        (tmp_path / "model.safetensors").write_bytes(text)
    with pytest.raises(CheckpointError) as caught:
        load_weights(model(), JobConfig(), tmp_path)
    assert says in caught.value.message
    assert str(tmp_path.parent / "x") not in caught.value.message


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no \.safetensors files"):
        load_weights(model(), JobConfig(), tmp_path)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--checkpoint.enable", "--checkpoint.initial_load_in_hf"], "without checkpoint.initial_load_path"),
        (
            ["--checkpoint.enable", "--checkpoint.last_save_in_hf", "--checkpoint.no_last_save_model_only"],
            "last_save_in_hf with",
        ),
    ],
)
def test_a_wish_for_weights_that_cannot_be_is_refused_before_a_process_starts(flags: list[str], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(load_for_training(flags), 1)
    assert says in caught.value.message
