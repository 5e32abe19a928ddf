"""What a user wrote: keys of a TOML file with their lines, and flags of the command line."""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError

SECTION = re.compile(r"\s*\[\s*([\w.\-\s]+?)\s*\]")
ASSIGNMENT = re.compile(r"\s*([\w\-]+(?:\s*\.\s*[\w\-]+)*)\s*=")


@dataclass(frozen=True)
class Given:
    """One key as written. The value of a flag is the list of the words that follow."""

    key: str
    value: Any
    line: int | None = None
    flag: bool = False


@dataclass(frozen=True)
class CommandLine:
    """A command line taken apart."""

    file: Path | None
    module: str | None
    function: str | None
    flags: tuple[Given, ...]


def read_toml(path: Path) -> list[Given]:
    """The keys of a file, in order.

    Raises:
        ConfigError: There is no such file, or it is no TOML.
    """
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "give the path of a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: no TOML: {error}", "see https://toml.io; strings need quotes") from error
    lines = line_numbers(text)
    return [Given(key, value, lines.get(key)) for key, value in flatten(tree)]


def flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def line_numbers(text: str) -> dict[str, int]:
    """Dotted key -> the line, from 1, where it stands."""
    found: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if section := SECTION.match(line):
            prefix = section[1].replace(" ", "") + "."
        elif key := ASSIGNMENT.match(line):
            found.setdefault(prefix + key[1].replace(" ", ""), number)
    return found


def read_flags(words: Sequence[str]) -> CommandLine:
    """Take a command line apart: `--section.key value`, `--section.key=value`, `--config`, `--module`.

    Raises:
        ConfigError: A word belongs to no flag.
    """
    flags: list[Given] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags.append(Given(name.replace("-", "_"), [value] if equals else [], flag=True))
        elif flags:
            flags[-1].value.append(word)
        else:
            raise ConfigError(f"{word!r} belongs to no option", "options are written --section.key value")
    sources = {given.key: one_word(given) for given in flags if given.key in ("config", "module", "job.config_file")}
    rest = tuple(given for given in flags if given.key not in sources)
    module, config = sources.get("module"), sources.get("config")
    file = sources.get("job.config_file") or (config if not module else None)
    if module and not config:
        raise ConfigError("--module needs --config", f"as in --module {module} --config {module}_debugmodel")
    return CommandLine(Path(file) if file else None, module, config if module else None, rest)


def one_word(given: Given) -> str:
    if len(given.value) != 1:
        raise ConfigError(f"--{given.key} takes one value", f"got {' '.join(given.value) or 'none'}")
    return str(given.value[0])
