"""Map the settings and weights of each model to their names in Hugging Face's transformers package.

This module also reads a model's shape from the package's config.json. It does not import torch, so that a launcher can
compare a folder of weights with the configuration before it starts a process. The mapping of each model is `FORMAT` in
the module `config_registry` of the model's package.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, auto
from pathlib import Path
from typing import Any, NamedTuple

from trainer.config.shape import ModelArgs, RopeScaling, YarnScaling
from trainer.errors import ConfigError
from workbench.recorders.files import read_json

FLAVOR = "hf_assets"
"""The value of model.flavor for a model whose shape is in the config.json in model.hf_assets_path."""
DESCRIPTION = "config.json"
EACH = "*"
_SCALINGS: dict[str, type[RopeScaling] | type[YarnScaling]] = {"llama3": RopeScaling, "yarn": YarnScaling}
"""{kind of rotary scaling in a config.json: class for it}; most fields of the class have the names in config.json."""
_SCALING_KEYS = {"original_length": "original_max_position_embeddings"}
"""{field of a class in `_SCALINGS`: its key in config.json}, for the field whose key has another name."""
_OPTIONAL_KEYS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "truncate")
"""The keys of a rotary scaling that may be absent or null in a config.json."""


class Layout(Enum):
    """How the transformers package arranges the values of a weight, compared with this trainer."""

    SAME = auto()
    ROTARY = auto()
    """The rotary features of each head are in two halves, not in adjacent pairs as in this trainer."""
    TRANSPOSED = auto()
    """The matrix of each expert is transposed."""
    GATE = auto()
    """As TRANSPOSED, but this weight is the first half of the columns of a stored weight that joins two of ours."""
    UP = auto()
    """As GATE, but this weight is the second half of the columns."""
    LISTED = auto()
    """Each expert has a weight of its own, with the number of the expert instead of EACH in its name."""


class Place(NamedTuple):
    """The name of a weight in the transformers package, and how its values are arranged there."""

    name: str
    layout: Layout = Layout.SAME


@dataclass(frozen=True)
class Format:
    """The names that the transformers package uses for one model, and other differences to this trainer.

    `model_type` and `architecture` are the package's names of the model's configuration and class. `args` is this
    trainer's class for the model's shape. `weights` is {this trainer's name of a weight in a layer: its `Place`}; names
    are without the prefix of the layer.
    """

    model_type: str
    architecture: str
    args: type[ModelArgs]
    weights: Mapping[str, Place]
    settings: Mapping[str, str] = field(default_factory=dict)
    """{field of `args`: key in config.json}, in addition to those in SETTINGS."""
    omitted: Mapping[str, object] = field(default_factory=dict)
    """{field of `args`: its value if config.json does not have the key}, in addition to those in OMITTED."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """{other name of a key in config.json: the name that is used here}."""
    derived: tuple[str, ...] = ()
    """The fields of `args` that are computed from other fields, and so have no key in config.json."""
    fixed: Mapping[str, object] = field(default_factory=dict)
    """{key in config.json: the only value that our model supports}."""
    by_layer: Callable[[ModelArgs], Mapping[str, object]] = lambda _: {}
    """A function that returns {key in config.json: list with a value for each layer}."""
    unsupported: Callable[[Mapping[str, object]], Iterable[str]] = lambda _: ()
    """A function that returns the keys of a config.json that our model does not support, besides `fixed`."""
    attention_span: str = ""
    """The key in config.json for the number of tokens within which attention is limited; empty if there is none.

    In this trainer each token attends to all earlier ones, so longer sequences are refused.
    """


_SETTINGS = {
    "dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim", "hidden_dim": "intermediate_size",
    "vocab_size": "vocab_size", "norm_eps": "rms_norm_eps", "rope_theta": "rope_theta",
    "enable_weight_tying": "tie_word_embeddings",
}  # fmt: skip
"""{field of ModelArgs: key in config.json}, for the keys that all models have."""
_OMITTED = {"norm_eps": 1e-6, "rope_theta": 10000.0, "enable_weight_tying": False}
"""{field of ModelArgs: its value if config.json does not have the key}."""
ATTENTION = {
    "attention.wq.weight": Place("self_attn.q_proj.weight", Layout.ROTARY),
    "attention.wk.weight": Place("self_attn.k_proj.weight", Layout.ROTARY),
    "attention.wv.weight": Place("self_attn.v_proj.weight"),
    "attention.wo.weight": Place("self_attn.o_proj.weight"),
    "attention_norm.weight": Place("input_layernorm.weight"),
    "ffn_norm.weight": Place("post_attention_layernorm.weight"),
}
_FEED_FORWARD = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
LISTED_EXPERTS = {
    "moe.router.gate.weight": Place("mlp.gate.weight"),
    **{
        f"moe.experts.{ours}": Place(f"mlp.experts.{EACH}.{theirs}.weight", Layout.LISTED)
        for ours, theirs in _FEED_FORWARD.items()
    },
}


def feed_forward(here: str, there: str) -> dict[str, Place]:
    """Return {this trainer's name of a weight: its `Place`} for the three weights of a feed-forward layer.

    The name of the layer is `here` in this trainer, and `there` in the transformers package.
    """
    return {f"{here}.{ours}.weight": Place(f"{there}.{theirs}.weight") for ours, theirs in _FEED_FORWARD.items()}


def exceeding(described: Mapping[str, object], few: str, many: str) -> Iterator[str]:
    """Yield the key `few` if its number in a config.json is larger than that of `many`, of which it is a part."""
    chosen, count = described.get(few), described.get(many)
    if isinstance(chosen, int) and isinstance(count, int) and chosen > count:
        yield few


def format_of(model: str) -> Format:
    form: Format = importlib.import_module(f"trainer.models.{model}.config_registry").FORMAT
    return form


def read_shape(model: str, folder: str | None) -> ModelArgs:
    """Return the shape of the model that the config.json in `folder` describes; `model` is its name in this trainer.

    Raises:
        ConfigError: There is no folder or no config.json, or the file describes another model or unsupported settings.
    """
    if folder is None:
        raise ConfigError(
            f"model.flavor {FLAVOR} without model.hf_assets_path names no {DESCRIPTION}",
            "give --model.hf_assets_path with a folder of the transformers package",
        )
    form = format_of(model)
    stated = _stated_settings(form, Path(folder))
    known = {**_OMITTED, **form.omitted, **stated}
    # The transformers package, too, derives them so where a file of Llama lacks them.
    if {"dim", "n_heads"} <= known.keys():
        known = {"head_dim": known["dim"] // known["n_heads"], "n_kv_heads": known["n_heads"], **known}
    if missing := [key for name, key in keys(form).items() if name not in known]:
        raise ConfigError(f"{Path(folder, DESCRIPTION)} has no {', '.join(missing)}", "copy the file again")
    args = form.args(**known)
    if args.n_heads % args.n_kv_heads or args.rotary_dim % 2:
        raise ConfigError(
            f"{Path(folder, DESCRIPTION)}: {args.n_heads} heads of {args.rotary_dim} rotated features share"
            f" {args.n_kv_heads} key-value heads unevenly, or have no pairs of features to rotate",
            "give a num_attention_heads that is a multiple of num_key_value_heads, and an even head_dim",
        )
    return args


def check_same_shape(model: str, flavor: str, args: ModelArgs, length: int, folder: Path) -> None:
    """Raise ConfigError if the config.json in `folder` describes another model than `args`, the shape of `flavor`.

    `length` is the number of tokens in a training sequence; the model must be able to attend to so many. Settings that
    the file does not have are not compared. Without a file, nothing is checked.
    """
    form = format_of(model)
    if not has_file(folder, DESCRIPTION):
        return
    stated = _stated_settings(form, folder)
    _check_span(form, folder, length)
    names = {"rope_scaling": "rope_scaling", **keys(form)}
    different = [
        f"{names[name]} is {value} there and {getattr(args, name)} in {model} {flavor}"
        for name, value in stated.items()
        if value != getattr(args, name)
    ]
    if different:
        raise ConfigError(
            f"{folder} is another model: {', '.join(different)}",
            f"choose the flavor of these weights, or take their shape: --model.flavor {FLAVOR} --model.hf_assets_path"
            f" {folder}",
        )


def has_file(folder: Path, name: str) -> bool:
    """Return whether a folder has a file with this name; False if the path is impossible or too long."""
    try:
        return (folder / name).is_file()
    except OSError:
        return False


def _check_span(form: Format, folder: Path, length: int) -> None:
    """Raise ConfigError if the described model attends to fewer tokens than `length`, the length of a sequence."""
    described = read_json(folder / DESCRIPTION, by_links=True)
    span, layers = described.get(form.attention_span), described.get("layer_types")
    everywhere = isinstance(layers, list) and set(layers) == {"full_attention"}
    if isinstance(span, int) and span < length and not everywhere:
        raise ConfigError(
            f"{folder}: {form.attention_span} is {span}, and training.seq_len is {length}: here all tokens of a"
            " sequence attend to each other",
            f"set training.seq_len to {span} or less",
        )


def keys(form: Format) -> dict[str, str]:
    """Return {field of the model's shape: key in config.json}, without fields that have no key."""
    return {name: key for name, key in {**_SETTINGS, **form.settings}.items() if name not in form.derived}


def _stated_settings(form: Format, folder: Path) -> dict[str, Any]:
    """Return {field of the model's shape: value} of the settings that the config.json in `folder` has.

    Raises:
        ConfigError: The file is unreadable, belongs to another model, or has values that our model does not support.
    """
    path, described = folder / DESCRIPTION, read_json(folder / DESCRIPTION, by_links=True)
    if not isinstance(described, dict):
        raise ConfigError(f"{path} is missing or no JSON object", "give a folder of the transformers package")
    described = {key: described[other] for other, key in form.aliases.items() if other in described} | described
    # Version 5 of the transformers package writes the first key, published models have the second.
    rotary = described.get("rope_parameters") or described.get("rope_scaling") or {}
    rotary = rotary if isinstance(rotary, dict) else {"rope_type": rotary}
    _check_supported(form, path, described)
    described = {**described, **{name: rotary[name] for name in ("rope_theta",) if name in rotary}}
    found = {name: described[key] for name, key in keys(form).items() if described.get(key) is not None}
    kinds = {item.name: type(item.default) for item in fields(form.args)}
    settings = {name: checked(path, keys(form)[name], value, kinds[name]) for name, value in found.items()}
    return {**settings, "rope_scaling": rope_scaling(path, {**_of_length(described), **rotary})}


def _check_supported(form: Format, path: Path, described: Mapping[str, object]) -> None:
    """Raise ConfigError if a config.json describes another type of model, or settings that our model does not have.

    `described` is the content of the file, and `path` its path.
    """
    kind = described.get("model_type", form.model_type)
    if kind != form.model_type:
        raise ConfigError(
            f"{path} describes a model of type {kind!r}, and the configured model is {form.model_type!r} there",
            "choose the model.name of these weights",
        )
    wrong = [key for key, value in form.fixed.items() if described.get(key) not in (None, value)]
    wrong += [key for key in form.unsupported(described) if key not in wrong]
    if wrong:
        values = ", ".join(f"{key} = {described.get(key)!r}" for key in wrong)
        raise ConfigError(
            f"{path}: {values}, which the model here does not do",
            "use weights of a model with " + ", ".join(f"{key} = {value!r}" for key, value in form.fixed.items()),
        )


def rope_scaling(path: Path, rotary: Mapping[str, object]) -> RopeScaling | YarnScaling | None:
    """Return the rotary scaling that a config.json describes; None if it describes none.

    `rotary` has the file's settings of rotary positions.

    Raises:
        ConfigError: Our models do not support this kind of scaling.
    """
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind == "default":
        return None
    if kind not in _SCALINGS:
        raise ConfigError(
            f"{path} is a model whose rotary positions are scaled ({kind}), which the model here does not do",
            f"use weights without rope_scaling, or with that of {' or '.join(_SCALINGS)}",
        )
    scaling = _SCALINGS[str(kind)]
    values = {
        item.name: checked(path, key, rotary.get(key), type(item.default))
        for item in fields(scaling)
        if _is_given(rotary, key := _SCALING_KEYS.get(item.name, item.name)) or key not in _OPTIONAL_KEYS
    }
    return scaling(**values)


def _is_given(rotary: Mapping[str, object], key: str) -> bool:
    value = rotary.get(key)
    return value is False or bool(value)


def _of_length(described: Mapping[str, Any]) -> dict[str, object]:
    """Return {key: number of tokens} with the sequence length on which a model was first trained.

    A rotary scaling depends on this length. If the file does not have it, the model's present sequence length is used.
    """
    key = _SCALING_KEYS["original_length"]
    return {key: described.get(key, described.get("max_position_embeddings"))}


def checked(path: Path, key: str, value: object, kind: type) -> Any:
    """Return `value`, which a key in config.json has, if it is of type `kind`; an int is converted to a float.

    Raises:
        ConfigError: The value has another type, or is a number that is not above 0.
    """
    if kind is float and type(value) is int:
        value = float(value)
    # Not `isinstance`: true is an int in Python.
    if type(value) is not kind or (isinstance(value, int | float) and kind is not bool and not value > 0):
        expected = {bool: "true or false", int: "an integer above 0", float: "a number above 0"}[kind]
        raise ConfigError(f"{path}: {key} = {value!r} is not {expected}", "copy the file again")
    return value


def describe(form: Format, args: ModelArgs) -> dict[str, object]:
    """Return the content of config.json for a model of this shape."""
    settings = {key: getattr(args, name) for name, key in keys(form).items()}
    if args.rope_scaling:
        settings["rope_scaling"] = _describe_scaling(args.rope_scaling)
    return {
        "architectures": [form.architecture], "model_type": form.model_type, "hidden_act": "silu",
        **settings, **form.fixed, **form.by_layer(args),
    }  # fmt: skip


def _describe_scaling(scaling: RopeScaling | YarnScaling) -> dict[str, object]:
    kind = next(name for name, of_name in _SCALINGS.items() if isinstance(scaling, of_name))
    values = {_SCALING_KEYS.get(item.name, item.name): getattr(scaling, item.name) for item in fields(scaling)}
    return {"rope_type": kind, **{key: value for key, value in values.items() if value != 0 or value is False}}
