"""The logits of models made by the transformers package equal ours, and those of models that we saved equal theirs."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trainer.checkpoint import Checkpointer, TrainState
from trainer.config import ConfigError, JobConfig, load_for_training, validate
from trainer.data.loader import Loader, Share
from trainer.data.source import training_documents
from trainer.models.decoder import Decoder, build_model, init_weights

transformers = pytest.importorskip("transformers")
pytest.importorskip("safetensors.torch")
LENGTH = 48
SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 64, "vocab_size": 320, "max_position_embeddings": 64, "initializer_range": 0.3,
}  # fmt: skip
SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32, "rope_theta": 500.0,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 10.0, "beta_fast": 4,
}  # fmt: skip
# Scores that YaRN makes larger multiply what rounding leaves.
SOFT = {"head_dim": 16, "initializer_range": 0.15}
# Smaller weights than above: experts multiply what rounding leaves, which is more than 1e-5 otherwise.
MIXTURE = {
    "initializer_range": 0.1,
    "head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 4, "interleave_moe_layer_step": 2,
    "use_qk_norm": False, "attn_temperature_tuning": False, "no_rope_layers": [1, 1],
}  # fmt: skip
LATENT = {
    "initializer_range": 0.1, "num_key_value_heads": 4, "moe_intermediate_size": 24, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "n_shared_experts": 2,
    "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 12,
}  # fmt: skip
SPARSE = {
    "initializer_range": 0.15, "head_dim": 16, "moe_intermediate_size": 24, "num_experts": 8, "num_experts_per_tok": 3
}  # fmt: skip
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama3": ("llama3", "LlamaConfig", {}),
    "llama3 scaled": ("llama3", "LlamaConfig", {"rope_parameters": SCALED}),
    "llama3 with yarn": ("llama3", "LlamaConfig", {**SOFT, "rope_parameters": YARN | {"truncate": False}}),
    "llama3 tied": ("llama3", "LlamaConfig", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama3 with narrow heads": ("llama3", "LlamaConfig", {"head_dim": 4, "rms_norm_eps": 1e-3}),
    "qwen3": ("qwen3", "Qwen3Config", {"head_dim": 16}),
    "qwen3 tied": ("qwen3", "Qwen3Config", {"head_dim": 4, "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
    "qwen3 with yarn": (
        "qwen3", "Qwen3Config", {**SOFT, "rope_parameters": YARN | {"attention_factor": 1.5}}
    ),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeConfig", SPARSE),
    "qwen3_moe with norms of weights in every second layer, and yarn": (
        "qwen3_moe",
        "Qwen3MoeConfig",
        SPARSE | {"norm_topk_prob": True, "decoder_sparse_step": 2, "rope_parameters": YARN},
    ),
    "llama4": ("llama4", "Llama4TextConfig", MIXTURE),
    "llama4 with two experts in every layer": (
        "llama4", "Llama4TextConfig", MIXTURE | {"num_experts_per_tok": 2, "interleave_moe_layer_step": 1}
    ),
    "deepseek_v3": ("deepseek_v3", "DeepseekV3Config", LATENT),
    "deepseek_v3 with direct queries and groups": (
        "deepseek_v3", "DeepseekV3Config", LATENT | {"q_lora_rank": None, "n_group": 2, "topk_group": 1}
    ),
    "deepseek_v3 with yarn": (
        "deepseek_v3",
        "DeepseekV3Config",
        LATENT | {"qk_rope_head_dim": 16, "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.5}},
    ),
}  # fmt: skip
"""{name of a case: our model, the class of its configuration in transformers, and settings}."""
pytestmark = pytest.mark.usefixtures("one_rank_group")


def tokens() -> Tensor:
    return torch.randint(320, (2, LENGTH), generator=torch.Generator().manual_seed(1))


def checkpoint(folder: Path, case: str, **saving: str) -> Any:
    """Save a model of the transformers package with random weights, and return it."""
    _, kind, settings = SHAPES[case]
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, kind)(**SMALL | settings))
    for name, weight in model.named_parameters():
        if "norm" in name:  # all ones would hide which norm is which, and their order
            weight.data.uniform_(0.5, 1.5)
    model.save_pretrained(folder, **saving)
    return model.float().eval()


def flags(case: str, folder: Path, *more: str) -> list[str]:
    """Return the flags of a training job whose model has the shape of that in `folder`."""
    return [
        "--model.name", SHAPES[case][0], "--model.flavor", "hf_assets", "--model.hf_assets_path", str(folder),
        "--training.seq_len", str(LENGTH), "--training.steps", "1", "--checkpoint.enable", *more,
    ]  # fmt: skip


def checkpointer(config: JobConfig) -> Checkpointer:
    """Return the checkpoints of a job of one rank, with its own seeded weights."""
    validate(config, 1)
    model = build_model(config).to_empty(device="cpu")
    init_weights(model, 4)  # with 3, two experts of a token have scores that differ by a rounding error
    loader = Loader(training_documents(7), LENGTH, Share(1))
    state = TrainState(model, torch.optim.AdamW(model.parameters()), loader)
    return Checkpointer(config, state, {"model": case_name(config)})


def case_name(config: JobConfig) -> str:
    return f"{config.model.name} {config.model.flavor}"


def logits(model: Decoder) -> Tensor:
    with torch.no_grad():
        return model(tokens())


def assert_equal(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.std() > 0.3, "the logits are too small to differ"
    # The largest logits are about 8, where a rounding error of float32 is 5e-7.
    torch.testing.assert_close(ours / theirs.abs().max(), theirs / theirs.abs().max(), rtol=0, atol=3e-6)


@pytest.mark.parametrize("case", SHAPES)
def test_a_model_of_transformers_has_the_same_logits_here(case: str, tmp_path: Path) -> None:
    theirs = checkpoint(tmp_path / "theirs", case, max_shard_size="60KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    loading = ["--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", str(tmp_path / "theirs")]
    made = checkpointer(load_for_training(flags(case, tmp_path / "theirs", *loading)))
    assert made.load() == tmp_path / "theirs"
    with torch.no_grad():
        assert_equal(logits(made.state.model), theirs(tokens()).logits)


@pytest.mark.parametrize("case", SHAPES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_saved_here_has_the_same_logits_there(case: str, dtype: str, tmp_path: Path) -> None:
    checkpoint(tmp_path / "theirs", case)
    saving = ["--checkpoint.last_save_in_hf", "--checkpoint.export_dtype", dtype, "--job.dump_folder", str(tmp_path)]
    made = checkpointer(load_for_training(flags(case, tmp_path / "theirs", *saving)))
    made.save(1)
    folder = tmp_path / "checkpoint" / "step-1"
    assert json.loads((folder / "config.json").read_text())["torch_dtype"] == dtype
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype="float32", output_loading_info=True
    )
    assert not any(report.values()), report
    for weight in made.state.model.parameters():
        weight.data = weight.data.to(getattr(torch, dtype)).float()
    with torch.no_grad():
        assert_equal(logits(made.state.model), theirs(tokens()).logits)


@pytest.mark.parametrize(
    ("wrong", "more", "says"),
    [
        ({}, ["--model.flavor", "debugmodel"], "is another model: hidden_size is 32 there and 64 in llama3 debugmodel"),
        ({"model_type": "mistral"}, [], "a model of type 'mistral', and the configured model is 'llama' there"),
        ({"attention_bias": True}, [], "attention_bias = True, which the model here does not do"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, [], "positions are scaled (dynamic)"),
        ({"rope_parameters": {"rope_type": "yarn"}}, [], "factor = None is not a number above 0"),
        ({"hidden_size": None}, [], "has no hidden_size"),
        ({"hidden_size": "32"}, [], "hidden_size = '32' is not an integer above 0"),
        ({"num_key_value_heads": 3}, [], "4 heads of 8 rotated features share 3 key-value heads"),
        ({"num_hidden_layers": -2}, [], "num_hidden_layers = -2 is not an integer above 0"),
        ({"tie_word_embeddings": True}, ["--parallelism.pipeline_parallel_degree", "2"], "weight of the embedding"),
    ],
)
def test_other_models_are_refused_before_a_process_starts(
    wrong: dict[str, Any], more: list[str], says: str, tmp_path: Path
) -> None:
    described = transformers.LlamaConfig(**SMALL).to_dict() | wrong
    (tmp_path / "config.json").write_text(json.dumps(described))
    loading = ["--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", str(tmp_path)]
    with pytest.raises(ConfigError) as caught:
        validate(load_for_training(flags("llama3", tmp_path, *loading, *more)), 2)
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("model", "wrong", "says"),
    [
        ("llama4", {"use_qk_norm": True}, "use_qk_norm = True, which the model here does not do"),
        ("llama4", {"no_rope_layers": [1, 0]}, "no_rope_layers = [1, 0], which"),
        ("llama4", {"no_rope_layers": []}, "no_rope_layers = [], which"),
        ("llama4", {"moe_layers": [0]}, "moe_layers = [0], which"),
        ("llama4", {"attention_chunk_size": 16}, "attention_chunk_size is 16, and training.seq_len is 48"),
        ("llama4", {"num_experts_per_tok": 5}, "num_experts_per_tok = 5, which"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, "mlp_only_layers = [0], which"),
        ("qwen3_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok = 9, which"),
        ("deepseek_v3", {"n_group": 3}, "n_group = 3, which"),
        ("deepseek_v3", {"topk_group": 2}, "topk_group = 2, which"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func = 'softmax', which"),
        ("deepseek_v3", {"rope_parameters": {"rope_type": "longrope"}}, "positions are scaled (longrope)"),
        ("deepseek_v3", {"rope_parameters": {"rope_type": "yarn", "factor": 2, "mscale": "1"}}, "mscale = '1' is not"),
        ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank = 0 is not an integer above 0"),
    ],
)
def test_other_mixtures_are_refused_before_a_process_starts(
    model: str, wrong: dict[str, Any], says: str, tmp_path: Path
) -> None:
    _, kind, settings = SHAPES[model]
    described = getattr(transformers, kind)(**SMALL | settings).to_dict() | wrong
    (tmp_path / "config.json").write_text(json.dumps(described))
    loading = ["--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", str(tmp_path)]
    with pytest.raises(ConfigError) as caught:
        validate(load_for_training(flags(model, tmp_path, *loading)), 1)
    assert says in caught.value.message


def test_a_shape_without_a_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"without model\.hf_assets_path"):
        load_for_training(["--model.flavor", "hf_assets"])
    with pytest.raises(ConfigError, match=r"/nowhere/config\.json is missing"):
        validate(load_for_training(["--model.flavor", "hf_assets", "--model.hf_assets_path", "/nowhere"]), 1)
