"""`workbench config`: the trainer's configuration, resolved and explained key by key."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from analyzers.compare import settings
from analyzers.report import Finding, Report, Severity, Verdict, ranked, status_of, tool_version
from trainer import config as trainer_config
from trainer.config.show import toml
from workbench.errors import UsageProblem

NO_FLAG = ("job.config_file",)
"""Not asked about again: the file may be gone or another's, and what a run says is no reason to open it."""
SIGNS = {"honoured": "✓", "translated": "→", "ignored": "·", "unknown": "?"}


class ConfigData(msgspec.Struct, frozen=True):
    """Every key that was written, in the order written."""

    keys: list[dict[str, Any]]


@contextmanager
def told() -> Iterator[None]:
    """The trainer's complaints as this house's."""
    try:
        yield
    except trainer_config.ConfigError as error:
        raise UsageProblem(error.message, error.hint) from error


def show(file: Path | None, overrides: Sequence[str], *, as_json: bool) -> str:
    """The resolved configuration as TOML, or as JSON."""
    with told():
        config = trainer_config.load(file, overrides)
    if as_json:
        return msgspec.json.format(msgspec.json.encode(trainer_config.as_dict(config)), indent=2).decode()
    return toml(config)


def explain(file: Path | None, overrides: Sequence[str], *, as_json: bool) -> str:
    """Every key with its class, as text or as the JSON of the contract."""
    with told():
        reports = trainer_config.explain(file, overrides)
    if as_json:
        return document(reports).json().decode()
    return "\n".join(line(report) for report in reports) or "no keys: every value is the default"


def line(report: trainer_config.KeyReport) -> str:
    """One key as `✓ honoured    training.steps = 10   (line 3)`."""
    source = f" (from {report.source})" if report.source and report.source != report.key else ""
    place = f"   (line {report.line})" if report.line else ""
    meant = f" Did you mean {report.suggestion}?" if report.suggestion else ""
    why = f"\n    {report.reason}.{meant}" if report.reason else ""
    return f"{SIGNS[report.cls]} {report.cls:<11} {report.key} = {report.value!r}{source}{place}{why}"


def document(reports: Sequence[trainer_config.KeyReport]) -> Report[ConfigData]:
    """The account as a report: unknown keys are errors, and so are those without which the result would differ."""
    findings = ranked(
        Finding(
            id=f"config.{'refused' if report.refused else 'unknown'}.{report.key}",
            severity=Severity.ERROR,
            title=f"{report.source or report.key} cannot be followed",
            why=f"{report.reason}",
            next=f"write {report.suggestion}" if report.suggestion else "leave the key out",
            confidence=1.0,
        )
        for report in reports
        if report.refused or report.cls == "unknown"
    )
    counts = {cls: sum(report.cls == cls for report in reports) for cls in SIGNS}
    sentence = f"{len(reports)} keys: " + ", ".join(f"{count} {cls}" for cls, count in counts.items())
    return Report(
        schema="workbench.config/1",
        version=tool_version(),
        inputs=[],
        verdict=Verdict(status=status_of(findings), kind="config", sentence=sentence, confidence=1.0),
        findings=findings,
        data=ConfigData([report.as_json() for report in reports]),
    )


class Setting(NamedTuple):
    """A key of a run, its value as text, where that came from, and what became of it."""

    key: str
    value: str
    origin: str
    cls: str
    reason: str


def of_run(manifest: Mapping[str, Any]) -> list[Setting]:
    """Every key of `run.json`: given as a flag, by the file or function that the run was started with, or as it is.

    Nothing that the manifest names is opened or imported.
    """
    flags = {report.key: report for report in flagged(manifest)}
    usual = dict(settings({"config": trainer_config.as_dict(trainer_config.JobConfig())}))
    source = started_with(manifest)
    told = [setting(key, value, flags.pop(key, None), usual, source) for key, value in settings(manifest)]
    return [*told, *(setting(key, report.value, report, usual, source) for key, report in flags.items())]


def setting(
    key: str, value: Any, flag: trainer_config.KeyReport | None, usual: Mapping[str, Any], source: str
) -> Setting:
    if flag:
        origin = f"flag --{flag.source or flag.key}"
        return Setting(key, str(value), origin, flag.cls, flag.reason or "")
    if key not in usual:
        return Setting(key, str(value), "the run", "", "")
    return Setting(key, str(value), "default" if value == usual[key] else source, "honoured", "")


def flagged(manifest: Mapping[str, Any]) -> list[trainer_config.KeyReport]:
    """What became of the flags in `argv`; nothing where they are not this trainer's."""
    groups = [found for found in grouped(words_of(manifest)) if "." in found[0] and found[0].lstrip("-") not in NO_FLAG]
    try:
        return trainer_config.explain(None, [word for group in groups for word in group])
    except trainer_config.ConfigError:
        return []


def words_of(manifest: Mapping[str, Any]) -> list[str]:
    """The command line of a run, as far as it is one."""
    words = manifest.get("argv")
    return [word for word in words if isinstance(word, str)] if isinstance(words, list) else []


def grouped(words: Sequence[str]) -> list[list[str]]:
    """Each flag with the words that follow it."""
    found: list[list[str]] = []
    for word in words:
        if word.startswith("--"):
            found.append(word.split("=", 1))
        elif found:
            found[-1].append(word)
    return found


def started_with(manifest: Mapping[str, Any]) -> str:
    """The file or function whose configuration the flags changed."""
    named = {flag.lstrip("-"): rest for flag, *rest in grouped(words_of(manifest))}
    given = [*named.get("job.config_file", []), *named.get("module", []), *named.get("config", [])]
    return " ".join(given[:2]) or "set by the run"
