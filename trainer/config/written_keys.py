"""Read the keys that the user wrote: from a TOML file, with line numbers, and from command-line flags."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.errors import ConfigError

_SECTION = re.compile(r"\s*\[\s*([\w.\-\s]+?)\s*\]")
LONGEST = 1 << 24
"""The largest number of characters that is read of a configuration file; a device such as /dev/zero has no end."""
_ASSIGNMENT = re.compile(r"\s*([\w\-]+(?:\s*\.\s*[\w\-]+)*)\s*=")


@dataclass(frozen=True)
class WrittenKey:
    """A key as the user wrote it; the value of a flag is the list of words that follow the flag."""

    key: str
    value: Any
    line: int | None = None
    flag: bool = False


@dataclass(frozen=True)
class CommandLine:
    """A parsed command line: the source of the configuration (file, or module and function), and the flags."""

    file: Path | None
    module: str | None
    function: str | None
    flags: tuple[WrittenKey, ...]


def read_toml(path: Path) -> list[WrittenKey]:
    """Return the keys of a TOML file, in the order of the file.

    Raises:
        ConfigError: There is no such file, or it is not TOML.
    """
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(LONGEST)
        tree = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "give the path of a TOML file") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}", "see https://toml.io; strings need quotes") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: arrays nested too deeply", "no key of a configuration needs that") from error
    lines = _line_numbers(text)
    return [WrittenKey(key, value, lines.get(key)) for key, value in flatten(tree)]


def flatten(tree: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yield (dotted key, value) for each value of a nested TOML table; `prefix` is the table's own dotted name."""
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _line_numbers(text: str) -> dict[str, int]:
    """Return {dotted key: line number, from 1} of a TOML text; tomllib does not report line numbers."""
    line_of_key: dict[str, int] = {}
    prefix = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if section := _SECTION.match(line):
            prefix = section[1].replace(" ", "") + "."
        elif key := _ASSIGNMENT.match(line):
            line_of_key.setdefault(prefix + key[1].replace(" ", ""), number)
    return line_of_key


def read_flags(words: Sequence[str]) -> CommandLine:
    """Parse the words of a command line: `--section.key value`, `--section.key=value`, `--config` and `--module`.

    Raises:
        ConfigError: A word belongs to no flag.
    """
    flags: list[WrittenKey] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags.append(WrittenKey(name.replace("-", "_"), [value] if equals else [], flag=True))
        elif flags:
            flags[-1].value.append(word)
        else:
            raise ConfigError(f"{word!r} belongs to no option", "options are written --section.key value")
    sources = {
        written.key: _one_word(written) for written in flags if written.key in ("config", "module", "job.config_file")
    }
    rest = tuple(written for written in flags if written.key not in sources)
    module, config = sources.get("module"), sources.get("config")
    file = sources.get("job.config_file") or (config if not module else None)
    if module and not config:
        raise ConfigError("--module needs --config", f"as in --module {module} --config {module}_debugmodel")
    return CommandLine(Path(file) if file else None, module, config if module else None, rest)


def _one_word(written: WrittenKey) -> str:
    """Return the single value that follows a flag.

    Raises:
        ConfigError: No value follows the flag, or more than one.
    """
    if len(written.value) != 1:
        raise ConfigError(f"--{written.key} takes one value", f"got {' '.join(written.value) or 'none'}")
    return str(written.value[0])
