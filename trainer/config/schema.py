"""Which keys does the configuration have? Type, default and help of each, and values made from TOML or from words."""

import ast
import inspect
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from trainer.config import sections
from trainer.config.sections import JobConfig
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True)
class Option:
    """One key of the configuration, such as training.seq_len."""

    key: str
    kind: type
    """bool, int, float, str or list (of strings)."""
    choices: tuple[str, ...]
    optional: bool
    default: Any
    help: str

    @property
    def metavar(self) -> str:
        """What stands for a value in help and errors."""
        if self.choices:
            return "|".join(self.choices)
        return "STR ..." if self.kind is list else self.kind.__name__.upper()


@cache
def options() -> dict[str, Option]:
    """Return every key of `JobConfig` by its dotted name, in order."""
    defaults, documents = JobConfig(), help_texts()
    options_by_key = {}
    for section in fields(JobConfig):
        part = getattr(defaults, section.name)
        hints = get_type_hints(type(part))
        for item in fields(part):
            key = f"{section.name}.{item.name}"
            text = documents[type(part).__name__, item.name]
            options_by_key[key] = option(key, hints[item.name], getattr(part, item.name), text)
    return options_by_key


def option(key: str, hint: object, default: object, text: str) -> Option:
    """Return the option for a field with this type annotation."""
    optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    if optional:
        hint = next(part for part in get_args(hint) if part is not NoneType)
    origin = get_origin(hint)
    if origin is Literal:
        return Option(key, str, get_args(hint), optional, default, text)
    return Option(key, cast("type", origin or hint), (), optional, default, text)


def help_texts() -> dict[tuple[str, str], str]:
    """Return {(class, field): the string below the field}, which is its help."""
    texts = {}
    for node in ast.parse(inspect.getsource(sections)).body:
        if isinstance(node, ast.ClassDef):
            for item, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(item, ast.AnnAssign) and isinstance(below, ast.Expr):
                    name, text = ast.unparse(item.target), ast.literal_eval(below.value)
                    texts[node.name, name] = " ".join(text.split())
    return texts


def from_toml(option: Option, value: object) -> object:
    """Return `value` as the option's type.

    Raises:
        ConfigError: It has another type, or is not one of the choices.
    """
    if option.kind is list:
        return split_commas(value) if isinstance(value, str) else checked_list(option, value)
    # TOML distinguishes 1 from 1.0, which people do not.
    if option.kind is float and type(value) is int:
        value = float(value)
    # `selective_ac_option = 2` is meant as "2".
    if option.kind is str and type(value) is int and not option.choices:
        value = str(value)
    if type(value) is not option.kind:
        raise wrong_value(option, value)
    if option.choices and value not in option.choices:
        raise wrong_value(option, value)
    return value


def from_words(option: Option, words: list[str]) -> object:
    """Return the value that the command line gives; numbers may be written as Python writes them.

    Raises:
        ConfigError: It has another type, or is not one of the choices.
    """
    if option.kind is list:
        return [part for word in words for part in split_commas(word)]
    if len(words) != 1:
        raise wrong_value(option, " ".join(words))
    if option.optional and words[0] in ("None", "none"):
        return None
    try:
        return from_toml(option, option.kind(words[0].replace("_", "") if option.kind is int else words[0]))
    except ValueError:
        raise wrong_value(option, words[0]) from None


def split_commas(text: str) -> list[str]:
    """Return the parts of a comma-separated text."""
    return [part.strip() for part in text.split(",") if part.strip()]


def checked_list(option: Option, value: object) -> list[str]:
    """Return `value` if it is a list of strings.

    Raises:
        ConfigError: It is not.
    """
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise wrong_value(option, value)
    return list(value)


def wrong_value(option: Option, value: object) -> ConfigError:
    """Return the error that names a key, its value and its type."""
    return ConfigError(f"{option.key} = {value!r} is not {option.metavar}", f"{option.key}: {option.help}")


def as_dict(config: "DataclassInstance") -> dict[str, Any]:
    """Return the configuration as plain dicts, for JSON."""
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    return {
        name: as_dict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for name, value in values.items()
    }
