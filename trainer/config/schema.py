"""The keys of the configuration: their types, defaults and help texts, and the conversion of TOML values and flags."""

import ast
import inspect
import json
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from trainer.config.sections import Bounds, JobConfig
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


KINDS: tuple[type, ...] = (bool, int, float, str, list)
"""The types that a key can have."""


@dataclass(frozen=True)
class Option:
    """One key of the configuration, such as training.seq_len."""

    key: str
    kind: type
    """The type of the values: bool, int, float, str or list (of strings)."""
    choices: tuple[str, ...]
    optional: bool
    default: Any
    help: str
    bounds: Bounds | None = None

    @property
    def metavar(self) -> str:
        """The placeholder for a value in help texts and errors, such as `INT`."""
        if self.choices:
            return "|".join(self.choices) + (" ..." if self.kind is list else "")
        return "STR ..." if self.kind is list else self.kind.__name__.upper()

    @property
    def expected(self) -> str:
        """The possible values in words, for error messages."""
        kinds = {
            bool: "true or false",
            int: "an integer",
            float: "a number",
            str: "a string",
            list: "a list of strings",
        }
        named = f"{'a list of' if self.kind is list else 'one of'} {', '.join(self.choices)}"
        possible = self.bounds.described(self.kind) if self.bounds else named if self.choices else kinds[self.kind]
        return f"{possible}, or None" if self.optional else possible


@cache
def options() -> dict[str, Option]:
    """Return {dotted key: option} of every key of `JobConfig`, in the order of the sections."""
    return dict(options_of(JobConfig()))


def own_options(config: JobConfig) -> dict[str, Option]:
    """Return {dotted key: option} of the keys that a user's subclass of `JobConfig` adds.

    They may be in new sections or in existing ones.

    Raises:
        ConfigError: A section is not a dataclass, or a field has an unsupported type.
    """
    if type(config) is JobConfig:
        return {}
    return {key: found for key, found in options_of(config) if key not in options()}


def options_of(config: JobConfig) -> Iterator[tuple[str, Option]]:
    """Yield (dotted key, option) of every key of a configuration, in order."""
    for section in fields(config):
        part = getattr(config, section.name)
        if not is_dataclass(part) or isinstance(part, type):
            raise ConfigError(f"{section.name} of {type(config).__name__} is no section", "make it a dataclass")
        documents = _help_texts(type(part))
        hints = get_type_hints(type(part), include_extras=True)
        for item in fields(part):
            key = f"{section.name}.{item.name}"
            yield key, option(key, hints[item.name], getattr(part, item.name), documents.get(item.name, ""))


def option(key: str, hint: object, default: object, text: str) -> Option:
    """Return the option for `key`, from a dataclass field: its type annotation `hint`, default and help `text`."""
    optional = get_origin(hint) in (Union, UnionType) and NoneType in get_args(hint)
    if optional:
        hint = next(part for part in get_args(hint) if part is not NoneType)
    bounds = None
    if get_origin(hint) is Annotated:
        hint, bounds = get_args(hint)
    origin = get_origin(hint)
    if origin is Literal:
        return Option(key, str, get_args(hint), optional, default, text)
    choices = get_args(get_args(hint)[0]) if origin is list else ()
    kind = cast("type", origin or hint)
    if kind not in KINDS:
        raise ConfigError(f"{key} has the type {hint}", f"give it one of {', '.join(each.__name__ for each in KINDS)}")
    return Option(key, kind, choices, optional, default, text, bounds)


def _help_texts(section: type) -> dict[str, str]:
    """Return {field: help text} of a section; the help text is the string literal below the field in the source."""
    texts: dict[str, str] = {}
    # From the base class on, so that the help texts of a user's subclass replace those of the base.
    for kind in reversed(section.__mro__[:-1]):
        # The source, because Python keeps no string below a field at run time.
        [node] = ast.parse(inspect.getsource(kind)).body
        body = node.body if isinstance(node, ast.ClassDef) else []
        for item, below in pairwise(body):
            if isinstance(item, ast.AnnAssign) and isinstance(below, ast.Expr):
                text = ast.literal_eval(below.value)
                texts[ast.unparse(item.target)] = " ".join(str(text).split())
    return texts


def from_toml(option: Option, value: object) -> object:
    """Return `value` converted to the option's type.

    TOML has no None: the string "None" means None, as on the command line.

    Raises:
        ConfigError: The value has another type, is not one of the choices, or is out of bounds.
    """
    if option.optional and value in ("None", "none", None):
        return None
    if option.kind is list:
        return _checked_list(option, _split_commas(value) if isinstance(value, str) else value)
    # TOML distinguishes 1 from 1.0, which people do not.
    if option.kind is float and type(value) is int:
        value = float(value)
    # `selective_ac_option = 2` is meant as "2".
    if option.kind is str and type(value) is int and not option.choices:
        value = str(value)
    is_possible = type(value) is option.kind and (not option.choices or value in option.choices)
    if not is_possible or (option.bounds and value not in option.bounds):
        raise _wrong_value(option, value)
    return value


def from_words(option: Option, words: list[str]) -> object:
    """Return the value of a flag from the words that follow it; numbers and lists may also be in TOML syntax.

    Raises:
        ConfigError: The value has another type, is not one of the choices, or is out of bounds.
    """
    if option.kind is list:
        listed = _toml_list(words[0]) if len(words) == 1 else None
        return _checked_list(option, [p for word in words for p in _split_commas(word)] if listed is None else listed)
    if len(words) != 1:
        raise _wrong_value(option, " ".join(words))
    try:
        return from_toml(option, _number_of_word(option.kind, words[0]))
    except ValueError:
        raise _wrong_value(option, words[0]) from None


def _number_of_word(kind: type, word: str) -> object:
    """Return a word of the command line as a number if `kind` is int or float, else unchanged.

    Forms such as 1_000, 0x10 and 1e-3 are accepted.

    Raises:
        ValueError: The word is not such a number.
    """
    if kind not in (int, float) or word in ("None", "none"):
        return word
    return int(word, 0) if kind is int else float(word)


def _toml_list(word: str) -> object:
    """Return the list that `word` contains in TOML syntax, such as `["a", "b"]`; None if it is not a list."""
    try:
        return tomllib.loads(f"list = {word}")["list"] if word.startswith("[") else None
    except (ValueError, RecursionError):
        return None


def _split_commas(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _checked_list(option: Option, value: object) -> list[str]:
    """Return `value` if it is a list of strings that the option accepts.

    Raises:
        ConfigError: The value is anything else.
    """
    if not isinstance(value, list) or not all(isinstance(part, str) for part in value):
        raise _wrong_value(option, value)
    if option.choices and not set(value) <= set(option.choices):
        raise _wrong_value(option, value)
    return list(value)


def _wrong_value(option: Option, value: object) -> ConfigError:
    # A key of a user's own section may have no help text.
    hint = f"{option.key}: {option.help}" if option.help else f"give {option.expected}"
    return ConfigError(f"{option.key} = {value!r} is not {option.expected}", hint)


def as_dict(config: "DataclassInstance") -> dict[str, Any]:
    """Return the configuration as nested plain dicts, {section: {key: value}}, for JSON."""
    values = {item.name: getattr(config, item.name) for item in fields(config)}
    return {
        name: as_dict(value) if is_dataclass(value) and not isinstance(value, type) else value
        for name, value in values.items()
    }


USAGE = """\
usage: {program} [--config FILE.toml | --module NAME --config FUNCTION] [--section.key VALUE ...]

Values come from the defaults, then the file, then the flags. A switch takes no value: --section.key turns it on,
--section.no_key off. Older and newer names of torchtitan are understood; `workbench config explain` lists them.
"""


def help_text(program: str) -> str:
    """Return the text of --help: every flag with its type, default and meaning; `program` is the command to show."""
    lines, section = [USAGE.format(program=program)], ""
    for key, option in options().items():
        if (head := key.partition(".")[0]) != section:
            section = head
            lines.append(f"\n{section}")
        lines += [f"  {flag(option)}  (default: {default(option)})", f"        {option.help}"]
    return "\n".join(lines)


def flag(option: Option) -> str:
    """Return the text of a flag in --help, such as `--training.steps INT`."""
    section, _, name = option.key.partition(".")
    if option.kind is bool:
        return f"--{option.key} | --{section}.no_{name}"
    return f"--{option.key} {option.metavar}"


def default(option: Option) -> str:
    return "None" if option.default is None else _toml_value(option.default)


def toml(config: JobConfig) -> str:
    blocks = []
    for section, values in as_dict(config).items():
        lines = [f"# {name} is not set" if v is None else f"{name} = {_toml_value(v)}" for name, v in values.items()]
        blocks.append("\n".join([f"[{section}]", *lines]))
    return "\n\n".join(blocks)


def _toml_value(value: object) -> str:
    return json.dumps(value)
