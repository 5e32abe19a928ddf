"""Load and save Llama 3 weights in the format of the transformers package.

That format has other parameter names, and puts the rotary features of a head into two halves instead of adjacent pairs.
Each pipeline stage writes its own file. Parameters are read and gathered whole, one at a time, on any mesh.
"""

import importlib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.config import JobConfig
from trainer.errors import CheckpointError
from trainer.models.decoder import model_args, set_whole
from trainer.models.llama3.flavors import ModelArgs
from trainer.step import whole
from workbench.recorders.files import read_json, write_json
from workbench.recorders.memory.tensor_hooks import without_wrappers

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
INDEX = "model.safetensors.index.json"
OUTER = {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}  # fmt: skip
INNER = {
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w3": "mlp.up_proj",
    "feed_forward.w2": "mlp.down_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
ROTATED = (".wq.weight", ".wk.weight")
LAYER = re.compile(r"(layers\.\d+)\.(.+)\.weight")
NO_SCALING = (None, "default")


def foreign_name(name: str) -> str:
    """Return the name that the transformers package gives to the parameter `name` of this trainer."""
    layer = LAYER.fullmatch(name)
    return f"model.{layer[1]}.{INNER[layer[2]]}.weight" if layer else OUTER[name]


def halves(name: str, weight: Tensor, head_dim: int) -> Tensor:
    """Return a query or key weight with the rotary features of each head in two halves, the order of transformers.

    Example: a head has 6 features a to f, of which neighbours are rotated together. The new order is a c e, then b d f.
    """
    if not name.endswith(ROTATED):
        return weight
    return weight.view(-1, head_dim // 2, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def pairs(name: str, weight: Tensor, head_dim: int) -> Tensor:
    """Return a query or key weight with the rotary features of each head in adjacent pairs; the inverse of `halves`."""
    if not name.endswith(ROTATED):
        return weight
    return weight.view(-1, 2, head_dim // 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def save_weights(model: nn.Module, config: JobConfig, path: Path) -> None:
    """Write the weights of all ranks to a folder that the transformers package can load. All ranks must call it."""
    args, dtype = model_args(config), getattr(torch, config.checkpoint.export_dtype)
    stages = config.parallelism.pipeline_parallel_degree
    stage, position = divmod(dist.get_rank(), dist.get_world_size() // stages)
    weights = {}
    for wrapped, parameter in model.named_parameters():
        # Gathering takes all ranks, in the same order; one of each stage keeps the result.
        name, full = without_wrappers(wrapped), whole(parameter.detach())
        if position == 0:
            weights[foreign_name(name)] = halves(name, full.to("cpu", dtype), args.dim // args.n_heads).contiguous()
    file = f"model-{stage + 1:05}-of-{stages:05}.safetensors"
    if position == 0:
        path.mkdir(parents=True, exist_ok=True)
        safetensors().save_file(weights, path / file, {"format": "pt"})
    # Stages have different layers: rank 0 writes the index for all of them.
    contents: list[dict[str, tuple[str, int]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(contents, {name: (file, weight.nbytes) for name, weight in weights.items()})
    if dist.get_rank() == 0:
        parts = {name: part for content in contents for name, part in content.items()}
        total = sum(size for _, size in parts.values())
        weight_map = {name: file for name, (file, _) in parts.items()}
        write_json(path / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
        write_json(path / "config.json", description(args, config))
        copy_tokenizer(config.model.hf_assets_path, path)


def copy_tokenizer(source: str | None, target: Path) -> None:
    """Copy the files of the tokenizer that the model was trained with beside its weights."""
    for name in TOKENIZER_FILES if source else ():
        file = Path(str(source), name)
        if file.is_file():
            shutil.copyfile(file, target / name)


def description(args: ModelArgs, config: JobConfig) -> dict[str, object]:
    """Return the content of config.json, which tells the transformers package the shape of the model."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
        "hidden_size": args.dim, "intermediate_size": args.hidden_dim, "num_hidden_layers": args.n_layers,
        "num_attention_heads": args.n_heads, "num_key_value_heads": args.n_kv_heads, "vocab_size": args.vocab_size,
        "rms_norm_eps": args.norm_eps, "rope_theta": args.rope_theta, "tie_word_embeddings": False,
        "max_position_embeddings": config.training.seq_len, "torch_dtype": config.checkpoint.export_dtype,
    }  # fmt: skip


def load_weights(model: nn.Module, config: JobConfig, path: Path) -> None:
    """Load weights from a folder in the format of the transformers package into this rank's part of the model.

    Raises:
        CheckpointError: The folder has no weights or those of another model, or the model uses unsupported features.
    """
    args, files = model_args(config), weight_files(path)
    if scaling := position_scaling(path):
        raise CheckpointError(
            f"{path} is a model whose rotary positions are scaled ({scaling}), which llama3 here does not do",
            "give weights without rope_scaling in their config.json",
        )
    for wrapped, parameter in model.named_parameters():
        name = without_wrappers(wrapped)
        weight = read_weight(path, files, foreign_name(name))
        if weight.shape != parameter.shape:
            raise CheckpointError(
                f"{path}: {foreign_name(name)} has the shape {tuple(weight.shape)}, and {name} of {config.model.flavor}"
                f" has {tuple(parameter.shape)}",
                "choose the model.flavor of these weights",
            )
        set_whole(parameter, pairs(name, weight, args.dim // args.n_heads).to(parameter.device, parameter.dtype))


def weight_files(path: Path) -> Mapping[str, str]:
    """Return {weight name: name of the file that holds the weight}.

    Raises:
        CheckpointError: The folder has no weights, or its index is damaged.
    """
    index = read_json(path / INDEX)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if isinstance(listed, dict):
        # An index from elsewhere may not lead to other folders.
        return {str(name): Path(str(file)).name for name, file in listed.items()}
    names = {file.name: opened(file).keys() for file in sorted(path.glob("*.safetensors"))}
    if not names:
        raise CheckpointError(f"{path}: no .safetensors files there", "give a folder of the transformers package")
    return {weight: name for name, weights in names.items() for weight in weights}


def read_weight(path: Path, files: Mapping[str, str], name: str) -> Tensor:
    """Return the weight `name` as a whole tensor; `files` is the result of `weight_files`.

    Raises:
        CheckpointError: The folder does not have this weight.
    """
    if name not in files:
        raise CheckpointError(f"{path}: no weight {name} there", "choose the model and the flavor of these weights")
    weight: Tensor = opened(path / files[name]).get_tensor(name)
    return weight


def opened(file: Path) -> Any:
    """Open a safetensors file with `safe_open`.

    Raises:
        CheckpointError: The file does not exist or is damaged.
    """
    try:
        return safetensors().safe_open(file, framework="pt")
    except Exception as error:  # safetensors raises an error of its own, which cannot be imported by name here
        raise CheckpointError(f"{file}: {error}", "copy the file again") from error


def position_scaling(path: Path) -> str:
    """Return the kind of rotary-position scaling of the model in folder `path`, such as `llama3`; empty if it has
    none.
    """
    described = read_json(path / "config.json")
    found = described if isinstance(described, dict) else {}
    scaling = found.get("rope_scaling") or found.get("rope_parameters") or {}
    kind = scaling.get("rope_type", scaling.get("type")) if isinstance(scaling, dict) else str(scaling)
    return "" if kind in NO_SCALING else str(kind)


def safetensors() -> Any:
    """Return the safetensors module, imported only here as it is an optional dependency."""
    return importlib.import_module("safetensors.torch")
