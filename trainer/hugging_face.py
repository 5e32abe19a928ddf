"""Load and save weights in the format of Hugging Face's transformers package.

This format has other parameter names, and arranges the values of some weights differently (see
trainer.config.hf_format). Each pipeline stage writes its own file. Parameters are read and gathered as whole tensors,
one at a time, so any mesh works.
"""

import importlib
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trainer.config import ConfigError, JobConfig
from trainer.config.hf_format import (
    DESCRIPTION,
    EACH,
    Format,
    Layout,
    Place,
    check_same_shape,
    describe,
    format_of,
)
from trainer.errors import CheckpointError
from trainer.models.decoder import model_args, set_whole
from trainer.models.moe import moe_layers
from trainer.step import whole
from workbench.recorders.files import read_json, write_json
from workbench.recorders.memory.tensor_hooks import without_wrappers

logger = logging.getLogger("root")
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
INDEX = "model.safetensors.index.json"
_OUTER = {"tok_embeddings.weight": "model.embed_tokens.weight", "norm.weight": "model.norm.weight",
         "output.weight": "lm_head.weight"}  # fmt: skip
_ROUTING_BIAS = "expert_bias"
_NO_BIAS = (
    "The routing biases of experts have no place in the format of the transformers package: they are not saved, and"
    " its outputs differ for tokens that go to other experts by them. A checkpoint of PyTorch has them"
)
_LAYER = re.compile(r"(layers\.\d+)\.(.+)")


def place_of(name: str, form: Format) -> Place:
    """Return the name and arrangement of this trainer's parameter `name` in the transformers package."""
    layer = _LAYER.fullmatch(name)
    if not layer:
        return Place(_OUTER[name])
    place = form.weights[layer[2]]
    return Place(f"model.{layer[1]}.{place.name}", place.layout)


def halves(weight: Tensor, head_dim: int) -> Tensor:
    """Return a weight of queries or keys with the rotary features of each head in two halves, as in transformers.

    Example: a head has 6 features a to f, and the neighbours ab, cd, ef are rotated together. The new order is a c e b
    d f.
    """
    return weight.view(-1, head_dim // 2, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def pairs(weight: Tensor, head_dim: int) -> Tensor:
    """Return a weight of queries or keys in which features that are rotated together are neighbours.

    This is the inverse of `halves`.
    """
    return weight.view(-1, 2, head_dim // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def to_theirs(weight: Tensor, layout: Layout, head_dim: int) -> Tensor:
    """Return a weight of this trainer with its values arranged as in the transformers package.

    `layout` names the difference between both arrangements; `head_dim` is the number of features of a head.
    """
    if layout in (Layout.SAME, Layout.LISTED):
        return weight
    return halves(weight, head_dim) if layout is Layout.ROTARY else weight.transpose(1, 2)


def _to_ours(weight: Tensor, layout: Layout, head_dim: int) -> Tensor:
    """Return a weight of the transformers package with its values arranged as in this trainer.

    This is the inverse of `to_theirs`.
    """
    if layout in (Layout.GATE, Layout.UP):
        weight = weight.chunk(2, dim=-1)[layout is Layout.UP]
    if layout in (Layout.SAME, Layout.LISTED):
        return weight
    return pairs(weight, head_dim) if layout is Layout.ROTARY else weight.transpose(1, 2)


def save_weights(model: nn.Module, config: JobConfig, path: Path) -> None:
    """Write the weights of all ranks to the folder `path`, in a form that the transformers package can load.

    All ranks must call this function.
    """
    args, form = model_args(config), format_of(config.model.name)
    stages = config.parallelism.pipeline_parallel_degree
    stage, position = divmod(dist.get_rank(), dist.get_world_size() // stages)
    weights: dict[str, Tensor] = {}
    for name, tensor in _tensors_to_exchange(model, form):
        # Gathering takes all ranks, in the same order; one of each stage keeps the result.
        full = whole(tensor.detach())
        if position == 0:
            place = place_of(name, form)
            add(weights, place, to_theirs(full, place.layout, args.head_dim).to("cpu", export_dtype(config)))
    file = f"model-{stage + 1:05}-of-{stages:05}.safetensors"
    if position == 0:
        path.mkdir(parents=True, exist_ok=True)
        # safetensors refuses tensors that are not contiguous, and transformers files without this format.
        safetensors().save_file({name: w.contiguous() for name, w in weights.items()}, path / file, {"format": "pt"})
        if f"moe.{_ROUTING_BIAS}" not in form.weights and any(moe.expert_bias.any() for moe in moe_layers(model)):
            logger.warning(_NO_BIAS)
    _write_index(path, {name: (file, weight.nbytes) for name, weight in weights.items()})
    if dist.get_rank() == 0:
        write_json(path / DESCRIPTION, description(config))
        _copy_tokenizer(config.model.hf_assets_path, path)


def _tensors_to_exchange(model: nn.Module, form: Format) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of a model's parameters, and of the buffers that `form` counts as weights."""
    for wrapped, parameter in model.named_parameters():
        yield without_wrappers(wrapped), parameter
    for wrapped, buffer in model.named_buffers():
        layer = _LAYER.fullmatch(without_wrappers(wrapped))
        if layer and layer[2] in form.weights:
            yield without_wrappers(wrapped), buffer


def add(weights: dict[str, Tensor], place: Place, weight: Tensor) -> None:
    """Add a weight to `weights`, {name in the transformers package: tensor}, with the name and layout in `place`.

    If the transformers package joins two of our weights in one, the second is joined to the first. If it has a weight
    for each expert, our weight is split.
    """
    if place.layout in (Layout.GATE, Layout.UP) and place.name in weights:
        other = weights[place.name]
        weight = torch.cat((other, weight) if place.layout is Layout.UP else (weight, other), dim=-1)
    if place.layout is Layout.LISTED:
        weights.update({place.name.replace(EACH, str(i)): one for i, one in enumerate(weight)})
    else:
        weights[place.name] = weight


def _write_index(path: Path, saved: Mapping[str, tuple[str, int]]) -> None:
    """Write the index that says which file has which weight; all ranks must call this function.

    `saved` is {weight: (file, bytes)} of the weights that this rank has written.
    """
    # Stages have different layers: rank 0 writes the index for all of them.
    contents: list[Mapping[str, tuple[str, int]]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(contents, saved)
    if dist.get_rank() == 0:
        parts = {name: part for content in contents for name, part in content.items()}
        total = sum(size for _, size in parts.values())
        weight_map = {name: file for name, (file, _) in parts.items()}
        write_json(path / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _copy_tokenizer(source: str | None, target: Path) -> None:
    """Copy the tokenizer's files from the folder `source` to the folder of the weights, if `source` is given."""
    for name in _TOKENIZER_FILES if source else ():
        file = Path(str(source), name)
        if file.is_file():
            shutil.copyfile(file, target / name)


def description(config: JobConfig) -> dict[str, object]:
    return {
        **describe(format_of(config.model.name), model_args(config)),
        "max_position_embeddings": config.training.seq_len,
        "torch_dtype": config.checkpoint.export_dtype,
    }


def export_dtype(config: JobConfig) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, config.checkpoint.export_dtype)
    return dtype


def load_weights(model: nn.Module, config: JobConfig, path: Path) -> None:
    """Load weights in the format of the transformers package into this rank's part of the model.

    `path` is the folder with the weights.

    Raises:
        CheckpointError: The folder has no weights, or weights of another model, or the model has unsupported features.
    """
    args, files, form = model_args(config), _weight_files(path), format_of(config.model.name)
    try:
        check_same_shape(config.model.name, config.model.flavor, args, config.training.seq_len, path)
    except ConfigError as error:  # the launcher may not have seen this folder
        raise CheckpointError(error.message, error.hint) from error
    for name, parameter in _tensors_to_exchange(model, form):
        place = place_of(name, form)
        weight = _to_ours(_read_place(path, files, place, getattr(args, "n_experts", 0)), place.layout, args.head_dim)
        if weight.shape != parameter.shape:
            raise CheckpointError(
                f"{path}: {place.name} has the shape {tuple(weight.shape)}, and {name} of {config.model.flavor}"
                f" has {tuple(parameter.shape)}",
                "choose the model.flavor of these weights",
            )
        set_whole(parameter, weight.to(parameter.device, parameter.dtype))


def _weight_files(path: Path) -> Mapping[str, str]:
    """Return {weight name: name of the file that has the weight}.

    Raises:
        CheckpointError: The folder has no weights, or its index is damaged.
    """
    index = read_json(path / INDEX, by_links=True)
    listed = index.get("weight_map") if isinstance(index, dict) else None
    if isinstance(listed, dict):
        # An index from elsewhere may not lead to other folders.
        return {str(name): Path(str(file)).name for name, file in listed.items()}
    names = {file.name: _opened(file).keys() for file in sorted(path.glob("*.safetensors"))}
    if not names:
        raise CheckpointError(f"{path}: no .safetensors files there", "give a folder of the transformers package")
    return {weight: name for name, weights in names.items() for weight in weights}


def _read_place(path: Path, files: Mapping[str, str], place: Place, experts: int) -> Tensor:
    if place.layout is Layout.LISTED:
        return torch.stack([_read_weight(path, files, place.name.replace(EACH, str(i))) for i in range(experts)])
    return _read_weight(path, files, place.name)


def _read_weight(path: Path, files: Mapping[str, str], name: str) -> Tensor:
    """Return the weight `name` as a whole tensor; `files` is the result of `_weight_files`.

    Raises:
        CheckpointError: The folder does not have this weight.
    """
    if name not in files:
        raise CheckpointError(f"{path}: no weight {name} there", "choose the model and the flavor of these weights")
    weight: Tensor = _opened(path / files[name]).get_tensor(name)
    return weight


def _opened(file: Path) -> Any:
    """Open a safetensors file with `safe_open`.

    Raises:
        CheckpointError: The file does not exist or is damaged.
    """
    try:
        return safetensors().safe_open(file, framework="pt")
    except Exception as error:  # safetensors raises an error of its own, which cannot be imported by name here
        raise CheckpointError(f"{file}: {error}", "copy the file again") from error


def safetensors() -> Any:
    """Return the safetensors module, imported only here because safetensors is an optional dependency."""
    return importlib.import_module("safetensors.torch")
