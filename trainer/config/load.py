"""Turn a TOML file and command-line flags into a `JobConfig`, and report how each written key was handled."""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from trainer.config import compat
from trainer.config.checks import model_shape
from trainer.config.compat import WrittenKey, read_flags, read_toml
from trainer.config.converters import BUILT_IN, is_available
from trainer.config.mesh import replaced_schedule
from trainer.config.refusals import (
    NO_DATA,
    SWITCHES,
    WEIGHTS,
    asks_for_something,
    is_without_assets,
    off_switches,
    reason_without_effect,
    refusal_of,
)
from trainer.config.registry import from_registry
from trainer.config.schema import Option, from_toml, from_words, options, own_options
from trainer.config.sections import JobConfig, Training, Validation
from trainer.errors import ConfigError

_DATA_SETS = ("training.dataset", "validation.dataset")
Class = Literal["honoured", "translated", "ignored", "unknown"]
_OVERRIDDEN = "a flag sets it"
"""The reason that is reported for a key of a file if the command line overrides it."""


@dataclass(frozen=True)
class KeyReport:
    """How one configuration key that the user wrote was handled: honoured, translated, ignored or unknown."""

    key: str
    """The name that this trainer uses for the key."""
    value: Any
    cls: Class
    source: str | None = None
    """The name that the user wrote for the key; None if it is the same as `key`."""
    reason: str | None = None
    suggestion: str | None = None
    line: int | None = None
    """The number of the line in the file that sets the key; None if a flag sets it."""
    refused: bool = False
    """Whether the trainer refuses to start because of this key: training without it would give another result."""

    def as_json(self) -> dict[str, object]:
        """Return the report as a dict in the format `workbench.config/1`.

        In the dict, the field `cls` is named "class", and the field `source` is named "from".
        """
        return {
            "key": self.key, "value": self.value, "class": self.cls, "from": self.source, "reason": self.reason,
            "suggestion": self.suggestion, "line": self.line, "refused": self.refused,
        }  # fmt: skip


@dataclass
class Resolved:
    """The resolved configuration, and how each key that the user wrote is handled (`reports`)."""

    config: JobConfig
    reports: list[KeyReport] = field(default_factory=list)


def explain(path: Path | None, overrides: Sequence[str] = ()) -> list[KeyReport]:
    """Return a report on each key of the file at `path` and each flag in `overrides`: how it is handled, and why.

    The order is that in which the user wrote the keys.

    Raises:
        ConfigError: The file cannot be read, or a value has the wrong type.
    """
    return resolve(path, overrides).reports


def load(path: Path | None, overrides: Sequence[str] = ()) -> JobConfig:
    """Return the configuration: defaults, then the file at `path`, then the flags in `overrides`.

    The flags may also name a file (`--job.config_file FILE` or `--config FILE`), or a function that returns the
    configuration (`--module NAME --config FUNCTION`).

    Raises:
        ConfigError: The file cannot be read, a key is unknown, or a value has the wrong type.
    """
    resolved = resolve(path, overrides)
    if unknown := [report for report in resolved.reports if report.cls == "unknown"]:
        raise _unknown_keys(unknown)
    return resolved.config


def load_for_training(overrides: Sequence[str]) -> JobConfig:
    """Return the configuration like `load`, but raise an error if the trainer does not support a key or its value.

    Raises:
        ConfigError: As for `load`, or the trainer does not support a key or its value.
    """
    config = load(None, overrides)
    reports = explain(None, overrides)
    for key, switch in off_switches(config, _asked_for(reports)):
        if key in WEIGHTS:
            raise ConfigError(f"{key} has no effect, because {switch.key} is off", f"add {switch.turn_on}")
    if refused := [report for report in reports if report.refused]:
        raise ConfigError(
            f"this trainer cannot do what is asked: {'; '.join(map(_refusal_text, refused))}",
            "; ".join(unique(f"{r.suggestion}" for r in refused)) + "; torchtitan may do it: --trainer torchtitan",
        )
    return config


def _refusal_text(report: KeyReport) -> str:
    line = f" (line {report.line})" if report.line else ""
    return f"{report.source or report.key} = {report.value!r}{line}: {report.reason}"


def startup_notes(overrides: Sequence[str], world_size: int | None = None) -> list[str]:
    """Return sentences to print before a run: which values were replaced, and which keys have no effect.

    `world_size` is the number of ranks. If it is not given, keys that only FSDP uses are not reported.
    """
    resolved = resolve(None, overrides)
    reports = resolved.reports
    replaced = [
        f"{'' if r.source == r.key else f'{r.source} became '}{r.key} = {r.value!r}: {r.reason}"
        for r in reports
        if r.cls == "translated" and r.reason and r.value
    ]
    in_force = [r for r in reports if r.cls == "ignored" and not r.refused and r.reason != _OVERRIDDEN]
    ignored = [r for r in in_force if asks_for_something(r.key, r.value)]
    names = {
        reason: [r.source or r.key for r in ignored if r.reason == reason]
        for reason in unique(r.reason for r in ignored)
    }
    off: dict[str, list[str]] = {}
    for key, switch in off_switches(resolved.config, _asked_for(reports), world_size):
        off.setdefault(switch.turn_on, []).append(key)
    return [
        *replaced,
        *_shortened_warmup(resolved.config, reports),
        *replaced_schedule(resolved.config),
        *(f"without effect here: {', '.join(keys)} ({reason})" for reason, keys in names.items()),
        *(f"without effect: {', '.join(keys)} (add {turn_on})" for turn_on, keys in off.items()),
    ]


def _shortened_warmup(config: JobConfig, reports: Sequence[KeyReport]) -> list[str]:
    """Return a list with a warning if the warm-up is longer than the whole schedule; else an empty list.

    The trainer shortens such a warm-up to the length of the schedule.
    """
    steps, total = config.lr_scheduler.warmup_steps, config.lr_scheduler.total_steps or config.training.steps
    if steps <= total or all(report.key != "lr_scheduler.warmup_steps" for report in reports):
        return []
    return [f"lr_scheduler.warmup_steps {steps} is longer than the schedule, and becomes {total}"]


def _asked_for(reports: Sequence[KeyReport]) -> dict[str, bool]:
    """Return {key: whether a command-line flag set it} of the keys to check for an effect.

    The caller looks for keys without effect because their switch, such as `checkpoint.enable`, is off. So the result
    has the written switches, and the supported keys whose value differs from the default.
    """
    known, switches = options(), {switch.key for switch in SWITCHES}
    understood = [report for report in reports if report.cls in ("honoured", "translated") and report.key in known]
    return {
        report.key: report.line is None
        for report in understood
        if report.key in switches or report.value != known[report.key].default
    }


def unique(texts: Iterable[str | None]) -> list[str]:
    return list(dict.fromkeys(filter(None, texts)))


def _unknown_keys(unknown: list[KeyReport]) -> ConfigError:
    names = ", ".join(report.key + (f" (line {report.line})" if report.line else "") for report in unknown)
    meant = [f"{report.suggestion} instead of {report.key}" for report in unknown if report.suggestion]
    hint = f"did you mean {', '.join(meant)}?" if meant else "`python -m trainer.config --help` lists every key"
    return ConfigError(f"unknown key{'s' if len(unknown) > 1 else ''}: {names}", hint)


def resolve(path: Path | None, overrides: Sequence[str]) -> Resolved:
    """Return the configuration and a report on each written key.

    Later sources replace values of earlier ones: defaults or a registry function, then the file, then the flags.
    """
    line = read_flags(overrides)
    file = path or line.file
    resolved = Resolved(from_registry(line.module, line.function) if line.module and line.function else JobConfig())
    own = own_options(resolved.config)
    if file:
        resolved.config.job.config_file = str(file)
        apply(resolved, read_toml(file), own)
    in_file, resolved.reports = resolved.reports, []
    apply(resolved, [_with_value(flag, own) for flag in line.flags], own)
    resolved.reports = [*overridden(in_file, resolved.reports), *resolved.reports]
    if resolved.config.training.allow_synthetic:
        _replace_missing_data(resolved)
    resolved.reports = [settled(report, resolved.config) for report in resolved.reports]
    return resolved


def overridden(in_file: list[KeyReport], flags: list[KeyReport]) -> list[KeyReport]:
    """Return the reports on the keys of a file; if a flag sets the same key, the file's key is reported as ignored.

    So a refused value in the file does no harm if a flag replaces it.
    """
    keys = {report.key for report in flags if report.cls != "unknown"}
    return [
        replace(report, cls="ignored", reason=_OVERRIDDEN, suggestion=None, refused=False)
        if report.key in keys and report.cls != "unknown"
        else report
        for report in in_file
    ]


def _replace_missing_data(resolved: Resolved) -> None:
    """Replace the names of data sets that are not available by `synthetic`, and say so in the reports on the keys."""
    for key in _DATA_SETS:
        if not _missing_data(key, resolved.config):
            continue
        source = _data_source(key, resolved.config)
        name, source.dataset = source.dataset, "synthetic"
        reason = f"{name!r} is not shipped; seeded synthetic text replaces it (training.allow_synthetic)"
        resolved.reports = [
            replace(r, value="synthetic", cls="translated", source=r.source or key, reason=reason)
            if r.key == key and r.value == name
            else r
            for r in resolved.reports
        ]


def settled(report: KeyReport, config: JobConfig) -> KeyReport:
    """Return the report on a key, with `refused` corrected if it depends on other keys of the configuration.

    A key is refused if it names a missing model or data set. A refused key is accepted after all if it has no effect.
    This is the case if the key in `Refusal.beside` has its default. It is also the case for model converters in a dry
    run, which needs no package for them.
    """
    if report.refused and (beside := getattr(refusal_of(report.key), "beside", "")):
        section, name = beside.split(".")
        if getattr(getattr(config, section), name) == options()[beside].default:
            return replace(report, refused=False, suggestion=None, reason=f"without {beside} it changes nothing")
    if report.refused and report.key == "model.converters" and _needs_package_alone(config):
        return replace(report, refused=False, suggestion=None, reason="a dry run computes no products")
    if report.cls not in ("honoured", "translated"):
        return report
    why, hint = (_missing_model(config) if report.key.startswith("model.") else _missing_data(report.key, config)) or (
        "",
        "",
    )
    is_culprit = report.key in (*_DATA_SETS, "model.flavor" if "flavor" in why else "model.name")
    return replace(report, cls="ignored", refused=True, reason=why, suggestion=hint) if why and is_culprit else report


def _needs_package_alone(config: JobConfig) -> bool:
    """Return whether this is a dry run in which every model converter is known, even if its package is missing.

    A dry run computes no values, so it works without the package.
    """
    names = config.model.converters
    return config.comm.mode == "fake_backend" and all(name in BUILT_IN or is_available(name) for name in names)


def _missing_model(config: JobConfig) -> tuple[str, str] | None:
    """Return (reason, hint) if the configured model cannot be trained; None if it can."""
    try:
        model_shape(config)
    except ConfigError as error:
        return error.message, error.hint
    return None


def _missing_data(key: str, config: JobConfig) -> tuple[str, str] | None:
    """Return (reason, hint) if `key` names a data set that is not available, else None."""
    # A dry run reads no data, and without validation there is nothing to validate on.
    is_read = config.comm.mode != "fake_backend" and (key == "training.dataset" or config.validation.enable)
    if key not in _DATA_SETS or not is_read:
        return None
    source = _data_source(key, config)
    if source.dataset == "synthetic" or source.dataset_path:
        return None
    return f"data set {source.dataset!r} is not shipped", NO_DATA.format(section=key.partition(".")[0])


def _data_source(key: str, config: JobConfig) -> Training | Validation:
    return config.validation if key == "validation.dataset" else config.training


def apply(resolved: Resolved, written_keys: list[WrittenKey], own: Mapping[str, Option]) -> None:
    """Set the values of `written_keys` in `resolved.config`, and add a report on each key to `resolved.reports`.

    `own` is {key: option} of the keys that a user's configuration module adds. If the user wrote both the old and the
    new name of a key, the new name wins.
    """
    values = {written.key: written.value for written in written_keys}
    for written in written_keys:
        report = classify(written, values, own)
        resolved.reports.append(report)
        if report.cls in ("honoured", "translated") or (report.refused and report.key in options()):
            section, name = report.key.split(".")
            setattr(getattr(resolved.config, section), name, report.value)


def classify(written: WrittenKey, values: dict[str, object], own: Mapping[str, Option]) -> KeyReport:
    """Return the report on one key that the user wrote.

    `values` is {key: value} of all keys that the user wrote, and `own` has the options that a user's module adds.

    Raises:
        ConfigError: The key does not accept this value.
    """
    try:
        if option := own.get(written.key):
            return KeyReport(written.key, from_toml(option, written.value), "honoured", line=written.line)
        report = _classify_value(written, values)
        return replace(report, suggestion=_suggest(written.key, own)) if report.cls == "unknown" else report
    except ConfigError as error:
        if written.line is None:
            raise
        raise ConfigError(f"line {written.line}: {error.message}", error.hint) from error


def _classify_value(written: WrittenKey, values: dict[str, object]) -> KeyReport:
    """Return the report on a key of this trainer or of torchtitan.

    `values` is {key: value} of all keys that the user wrote, because a translation may depend on another key.

    Raises:
        ConfigError: The key does not accept this value. The caller adds the line number to this error.
    """
    key, value, source, reason = written.key, written.value, None, None
    if translation := compat.translate(key, value, values):
        source, key, value, reason = key, *translation
    option = options().get(key)
    if source and source != key and key in values:
        return KeyReport(key, value, "ignored", source, f"{key} is given too", line=written.line)
    refusal = refusal_of(key)
    # Before the option is looked up: of some keys, only certain values are refused.
    if refusal and value not in refusal.possible:
        hint = refusal.hint or _possible_values(key, refusal.possible)
        return KeyReport(key, value, "ignored", source, refusal.why, hint, written.line, refused=True)
    if option and not is_without_assets(key, value, values):
        value = from_toml(option, value)
        return KeyReport(key, value, "translated" if source else "honoured", source, reason or None, line=written.line)
    if why := refusal.why if refusal else reason_without_effect(key):
        return KeyReport(key, value, "ignored", source, why, line=written.line)
    return KeyReport(key, value, "unknown", source, "no such key", line=written.line)


def _possible_values(key: str, values: Sequence[object]) -> str:
    named = [str(value).lower() if isinstance(value, bool) else repr(value) for value in values if value is not None]
    return f"set {key} to {' or '.join(named)}" if named else f"remove {key}"


def _with_value(written: WrittenKey, own: Mapping[str, Option]) -> WrittenKey:
    """Return a command-line flag with its value: the words after the flag, converted to the type of the key.

    The flag `--SECTION.no_NAME` becomes the key SECTION.NAME with the value False. `own` is {key: option} of the keys
    that a user's module adds.
    """
    section, _, name = written.key.rpartition(".")
    plain = f"{section}.{name.removeprefix('no_')}"
    option = own.get(written.key) or _option_of(written.key)
    if option is None and name.startswith("no_"):
        return (
            WrittenKey(plain, value=_switch_value(plain, written, state=False), flag=True)
            if plain in own or is_known(plain)
            else written
        )
    if option is None:
        return WrittenKey(written.key, _value_of_words(written.value), flag=True)
    if option.kind is bool:
        return WrittenKey(written.key, value=_switch_value(written.key, written, state=True), flag=True)
    try:
        value = from_words(option, written.value)
    except ConfigError:
        # Like a value in a file it is refused with the reason.
        if not refusal_of(option.key):
            raise
        value = _value_of_words(written.value)
    return WrittenKey(written.key, value, flag=True)


def _option_of(key: str) -> Option | None:
    """Return the option of the configuration key `key`, which may be an older name; None if there is no such option."""
    return options().get(compat.RENAMED.get(key, key))


def is_known(key: str) -> bool:
    """Return whether this trainer or any version of torchtitan has this key."""
    return any(key in names for names in (options(), compat.RENAMED, compat.CONVERTED)) or bool(
        refusal_of(key) or reason_without_effect(key)
    )


def _switch_value(key: str, written: WrittenKey, *, state: bool) -> bool:
    """Return `state`, the value of a boolean flag: True for `--NAME` and False for `--no_NAME`.

    `key` is the configuration key of the flag, for the error message.

    Raises:
        ConfigError: A value follows the flag.
    """
    if written.value:
        section, _, name = key.rpartition(".")
        raise ConfigError(
            f"--{written.key} {written.value[0]}: a switch takes no value", f"write --{key} or --{section}.no_{name}"
        )
    return state


def _value_of_words(words: list[str]) -> object:
    """Return the value of a flag with unknown type, from the words that follow the flag.

    No word means True. One word is None, a number or a string. Several words are a list.
    """
    if len(words) != 1:
        return words or True
    if words[0] in ("None", "none"):
        return None
    # int first: 3 is a number of steps, 3.0 is not.
    for kind in (int, float):
        try:
            return kind(words[0])
        except ValueError:
            continue
    return words[0]


def _suggest(key: str, own: Iterable[str] = ()) -> str | None:
    """Return the known key most similar to the unknown `key`; None if no key is similar.

    A key in the same section is preferred. `own` has the keys that a user's module adds.
    """
    section, _, name = key.rpartition(".")
    names = [*own, *options(), *compat.RENAMED, *compat.CONVERTED]
    beside = [candidate for candidate in names if candidate.startswith(f"{section}.")]
    namesakes = [candidate for candidate in options() if candidate.endswith(f".{name}")]
    # A key of the same name is likely meant, however different its section is.
    for candidates, cutoff in ((beside, 0.85), (namesakes, 0.0), (names, 0.7)):
        if near := difflib.get_close_matches(key, candidates, n=1, cutoff=cutoff):
            return near[0]
    return None
