"""The settings of a run, each with its origin: a flag, a file, a registry function, or the defaults."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from analyzers.compare import settings
from trainer.config import ConfigError, JobConfig, KeyReport, as_dict, explain

FILE_FLAG = "job.config_file"
SIGNS = {"honoured": "✓", "translated": "→", "ignored": "·", "unknown": "?"}
"""{how the trainer handled a configuration key: sign that is shown for the key}."""
REFUSED_SIGN = "✗"
"""The sign of a key with which the trainer refuses to train."""


class Setting(NamedTuple):
    """A configuration key of a run: its value as text, and the origin of the value, such as a flag or a file.

    `cls` says how the trainer handled the key, such as "honoured" (see `SIGNS`). `reason` says why.
    """

    key: str
    value: str
    origin: str
    cls: str
    reason: str


def run_settings(manifest: Mapping[str, object]) -> list[Setting]:
    """Return every configuration key of a run, from `manifest`, the content of its `run.json`.

    The origin of a value is a flag, the run's configuration file or function, or the default. Files and modules that
    the manifest names are neither opened nor imported, because the manifest may come from another person.
    """
    flags = {report.key: report for report in _flag_reports(manifest)}
    defaults = dict(settings({"config": as_dict(JobConfig())}))
    source = _configuration_source(manifest)
    written = [setting(key, value, flags.pop(key, None), defaults, source) for key, value in settings(manifest)]
    return [*written, *(setting(key, report.value, report, defaults, source) for key, report in flags.items())]


def setting(key: str, value: object, flag: KeyReport | None, defaults: Mapping[str, object], source: str) -> Setting:
    shown = ", ".join(f"{name}={part}" for name, part in value.items()) if isinstance(value, Mapping) else str(value)
    if flag:
        origin = f"flag --{flag.source or flag.key}"
        return Setting(key, shown, origin, flag.cls, flag.reason or "")
    if key not in defaults:
        return Setting(key, shown, "the run", "", "")
    return Setting(key, shown, "default" if value == defaults[key] else source, "honoured", "")


def _flag_reports(manifest: Mapping[str, object]) -> list[KeyReport]:
    """Return a `KeyReport` on each configuration flag in `argv` of a `run.json`.

    The list is empty if the flags are not flags of our trainer.
    """
    groups = [words for words in _words_by_flag(command_words(manifest)) if "." in words[0]]
    # The file that the run was given may be missing here, or another: it must not be read again.
    asked = [word for words in groups if words[0].lstrip("-") != FILE_FLAG for word in words]
    try:
        return explain(None, asked)
    except ConfigError:
        return []


def command_words(manifest: Mapping[str, object]) -> list[str]:
    words = manifest.get("argv")
    return [word for word in words if isinstance(word, str)] if isinstance(words, list) else []


def _words_by_flag(words: Sequence[str]) -> list[list[str]]:
    """Return the words of a command line as one list per flag: the flag and its values.

    Words before the first flag are left out.

    >>> _words_by_flag(["train.py", "--training.steps", "5", "--job.id=a"])
    [['--training.steps', '5'], ['--job.id', 'a']]
    """
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            groups.append(word.split("=", 1))
        elif groups:
            groups[-1].append(word)
    return groups


def _configuration_source(manifest: Mapping[str, object]) -> str:
    flags = {flag.lstrip("-"): values for flag, *values in _words_by_flag(command_words(manifest))}
    named = [value for flag in (FILE_FLAG, "module", "config") for value in flags.get(flag, [])]
    return " ".join(named[:2]) or "set by the run"
