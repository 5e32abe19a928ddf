"""From a TOML file and flags to a `JobConfig`, with an account of what became of each key."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from trainer.config import compat
from trainer.config.registry import from_registry
from trainer.config.schema import Option, from_toml, from_words, options
from trainer.config.sections import JobConfig
from trainer.config.written_keys import Given, read_flags, read_toml
from trainer.errors import ConfigError

Class = Literal["honoured", "translated", "ignored", "unknown"]


@dataclass(frozen=True)
class KeyReport:
    """What became of one key that was written."""

    key: str
    """Our name of it."""
    value: Any
    cls: Class
    source: str | None = None
    """The name that was written, where it is another."""
    reason: str | None = None
    suggestion: str | None = None
    line: int | None = None
    """Where it stands in the file; None for flags."""
    refused: bool = False
    """Training without it would give another result, so it is refused."""

    def as_json(self) -> dict[str, Any]:
        """As `workbench.config/1` has it: `cls` is called class and `source` from."""
        return {
            "key": self.key, "value": self.value, "class": self.cls, "from": self.source, "reason": self.reason,
            "suggestion": self.suggestion, "line": self.line, "refused": self.refused,
        }  # fmt: skip


@dataclass
class Resolved:
    """A configuration and how it came about."""

    config: JobConfig
    reports: list[KeyReport] = field(default_factory=list)


def explain(path: Path | None, overrides: Sequence[str] = ()) -> list[KeyReport]:
    """What becomes of each key of the file at `path` and of the flags in `overrides`, in the order written.

    Raises:
        ConfigError: The file cannot be read, or a value is of the wrong type.
    """
    return resolve(path, overrides).reports


def load(path: Path | None, overrides: Sequence[str] = ()) -> JobConfig:
    """The configuration: defaults, then the file at `path`, then the flags in `overrides`.

    The flags may name the source too: `--job.config_file FILE`, `--config FILE`, or `--module NAME --config FUNCTION`.

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value is of the wrong type.
    """
    resolved = resolve(path, overrides)
    if unknown := [report for report in resolved.reports if report.cls == "unknown"]:
        raise unknown_keys(unknown)
    return resolved.config


def load_for_training(overrides: Sequence[str]) -> JobConfig:
    """As `load`, and refuses what would silently give another result than asked for."""
    config = load(None, overrides)
    if refused := [report for report in explain(None, overrides) if report.refused]:
        listing = "; ".join(f"{r.source or r.key} = {r.value!r}: {r.reason}" for r in refused)
        raise ConfigError(f"this trainer cannot do what is asked: {listing}", "leave these keys out, or use torchtitan")
    return config


def notes(overrides: Sequence[str]) -> list[str]:
    """What someone who starts this run should hear: values that were replaced, and wishes without effect."""
    reports = explain(None, overrides)
    replaced = [
        f"{r.source} became {r.key} = {r.value!r}: {r.reason}" for r in reports if r.cls == "translated" and r.reason
    ]
    ignored = [r.source or r.key for r in reports if r.cls == "ignored" and r.value]
    return replaced + ([f"without effect here: {', '.join(ignored)}"] if ignored else [])


def unknown_keys(unknown: list[KeyReport]) -> ConfigError:
    names = ", ".join(report.key + (f" (line {report.line})" if report.line else "") for report in unknown)
    meant = [f"{report.suggestion} instead of {report.key}" for report in unknown if report.suggestion]
    hint = f"did you mean {', '.join(meant)}?" if meant else "`python -m trainer.config --help` lists every key"
    return ConfigError(f"unknown key{'s' if len(unknown) > 1 else ''}: {names}", hint)


def resolve(path: Path | None, overrides: Sequence[str]) -> Resolved:
    """Defaults or the registry's configuration, changed by the file, then by the flags."""
    line = read_flags(overrides)
    file = path or line.file
    resolved = Resolved(from_registry(line.module, line.function) if line.module and line.function else JobConfig())
    if file:
        resolved.config.job.config_file = str(file)
        apply(resolved, read_toml(file))
    apply(resolved, [worded(given) for given in line.flags])
    return resolved


def apply(resolved: Resolved, written: list[Given]) -> None:
    """Set what `written` says and report on each key. Where an old and a new name meet, the new one wins."""
    values = {given.key: given.value for given in written}
    for given in written:
        report = classify(given, values)
        resolved.reports.append(report)
        if report.cls in ("honoured", "translated") or (report.refused and report.key in options()):
            section, name = report.key.split(".")
            setattr(getattr(resolved.config, section), name, report.value)


def classify(given: Given, values: dict[str, Any]) -> KeyReport:
    """The one class of a key."""
    key, value, source, reason = given.key, given.value, None, None
    if translation := compat.translate(key, value, values):
        source, key, value, reason = key, *translation
    option = options().get(key)
    if source and source != key and key in values:
        return KeyReport(key, value, "ignored", source, f"{key} is given too", line=given.line)
    if why := compat.refused(key, value):
        return KeyReport(key, value, "ignored", source, why, line=given.line, refused=True)
    if option:
        value = value if value is None else from_toml(option, value)
        return KeyReport(key, value, "translated" if source else "honoured", source, reason or None, line=given.line)
    if why := compat.left_out(key):
        return KeyReport(key, value, "ignored", source, why, line=given.line)
    return KeyReport(key, value, "unknown", source, "no such key", suggest(key), given.line)


def worded(given: Given) -> Given:
    """A flag with its words turned into a value, and a leading `no_` into False."""
    section, _, name = given.key.rpartition(".")
    plain = f"{section}.{name.removeprefix('no_')}"
    option = option_behind(given.key)
    if option is None and name.startswith("no_"):
        option = option_behind(plain)
        return Given(plain, value=switched(plain, given, state=False), flag=True) if known(plain) else given
    if option is None:
        return Given(given.key, value_of_words(given.value), flag=True)
    if option.kind is bool:
        return Given(given.key, value=switched(given.key, given, state=True), flag=True)
    return Given(given.key, from_words(option, given.value), flag=True)


def option_behind(key: str) -> Option | None:
    return options().get(compat.RENAMED.get(key, key))


def known(key: str) -> bool:
    return any(key in names for names in (options(), compat.RENAMED, compat.CONVERTED)) or bool(compat.left_out(key))


def switched(key: str, given: Given, *, state: bool) -> bool:
    """The value of a boolean flag.

    Raises:
        ConfigError: A word follows.
    """
    if given.value:
        section, _, name = key.rpartition(".")
        raise ConfigError(
            f"--{given.key} {given.value[0]}: a switch takes no value", f"write --{key} or --{section}.no_{name}"
        )
    return state


def value_of_words(words: list[str]) -> Any:
    """A value for a key whose type is not known: what TOML would make of it."""
    if len(words) != 1:
        return words or True
    for kind in (int, float):
        try:
            return kind(words[0])
        except ValueError:
            continue
    return words[0]


def suggest(key: str) -> str | None:
    """The nearest known key: first in the same section, then of the same name elsewhere, then of any."""
    section, _, name = key.rpartition(".")
    names = [*options(), *compat.RENAMED, *compat.CONVERTED]
    beside = [candidate for candidate in names if candidate.startswith(f"{section}.")]
    namesakes = [candidate for candidate in options() if candidate.endswith(f".{name}")]
    for candidates, cutoff in ((beside, 0.85), (namesakes, 0.0), (names, 0.7)):
        if near := difflib.get_close_matches(key, candidates, n=1, cutoff=cutoff):
            return near[0]
    return None
