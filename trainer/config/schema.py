"""The keys of the configuration: type, default and help of each, and values made from TOML or from words."""

import ast
import inspect
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from trainer.config import sections
from trainer.config.sections import JobConfig
from trainer.errors import ConfigError


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
    """Every key of `JobConfig`, by its dotted name, in order."""
    defaults, documents = JobConfig(), docs()
    found = {}
    for section in fields(JobConfig):
        part = getattr(defaults, section.name)
        hints = get_type_hints(type(part))
        for item in fields(part):
            key = f"{section.name}.{item.name}"
            text = documents[type(part).__name__, item.name]
            found[key] = option(key, hints[item.name], getattr(part, item.name), text)
    return found


def option(key: str, hint: Any, default: Any, text: str) -> Option:
    """An option from a field's annotation."""
    optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    if optional:
        hint = next(part for part in get_args(hint) if part is not NoneType)
    origin = get_origin(hint)
    if origin is Literal:
        return Option(key, str, get_args(hint), optional, default, text)
    return Option(key, origin or hint, (), optional, default, text)


def docs() -> dict[tuple[str, str], str]:
    """(class, field) -> the string below the field."""
    found = {}
    for node in ast.parse(inspect.getsource(sections)).body:
        if isinstance(node, ast.ClassDef):
            for item, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(item, ast.AnnAssign) and isinstance(below, ast.Expr):
                    name, text = ast.unparse(item.target), ast.literal_eval(below.value)
                    found[node.name, name] = " ".join(text.split())
    return found


def from_toml(option: Option, value: Any) -> Any:
    """`value` as the option's type.

    Raises:
        ConfigError: It is of another type, or no known choice.
    """
    if option.kind is list:
        return split(value) if isinstance(value, str) else listed(option, value)
    if option.kind is float and type(value) is int:
        value = float(value)
    if option.kind is str and type(value) is int and not option.choices:
        value = str(value)
    if type(value) is not option.kind:
        raise wrong(option, value)
    if option.choices and value not in option.choices:
        raise wrong(option, value)
    return value


def from_words(option: Option, words: list[str]) -> Any:
    """The value that the command line gives; numbers may be written as Python writes them."""
    if option.kind is list:
        return [part for word in words for part in split(word)]
    if len(words) != 1:
        raise wrong(option, " ".join(words))
    if option.optional and words[0] in ("None", "none"):
        return None
    try:
        return from_toml(option, option.kind(words[0].replace("_", "") if option.kind is int else words[0]))
    except ValueError:
        raise wrong(option, words[0]) from None


def split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def listed(option: Option, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise wrong(option, value)
    return list(value)


def wrong(option: Option, value: Any) -> ConfigError:
    return ConfigError(f"{option.key} = {value!r} is not {option.metavar}", f"{option.key}: {option.help}")


def as_dict(config: Any) -> dict[str, Any]:
    """The configuration as plain dicts, for JSON."""
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    return {name: as_dict(value) if is_dataclass(value) else value for name, value in values.items()}
