"""Implement `workbench config`: show the trainer's configuration, explain each key, and compare two configurations."""

from collections.abc import Sequence
from pathlib import Path

import msgspec

from analyzers.compare import settings
from analyzers.report import Finding, Report, Severity, Verdict, ranked, status_of
from analyzers.run import discover
from trainer import config as trainer_config
from trainer.config.compat import read_flags
from trainer.config.schema import toml
from workbench.errors import UsageProblem, trainer_errors_as_ours
from workbench.launch.environment import for_command
from workbench.launch.plan import Request
from workbench.run_settings import FILE_FLAG, REFUSED_SIGN, SIGNS


class ConfigData(msgspec.Struct, frozen=True):
    """The data of `workbench config explain --json`: how each key that the file or a flag sets was handled.

    Each key is a `KeyReport` as a dict. The keys are in the order in which the user wrote them.
    """

    keys: list[dict[str, object]]


def with_environment(file: Path | None, overrides: Sequence[str], command: str) -> tuple[Path | None, list[str]]:
    """Return the file and the overrides, completed from CONFIG_FILE, MODULE with CONFIG, and COMM_MODE as for `launch`.

    The command line takes precedence. A note is printed for each variable.
    """
    with trainer_errors_as_ours():
        line = read_flags(overrides)
    named = str(file or line.file or line.function or "")
    asked = Request(config=named or None, module=line.module, overrides=tuple(overrides))
    request = for_command(asked, command, reads=("COMM_MODE",))
    if request.module == asked.module:
        return Path(request.config) if request.config and not named else file, [*request.overrides]
    return file, ["--module", str(request.module), "--config", str(request.config), *request.overrides]


def show(file: Path | None, overrides: Sequence[str], *, as_json: bool) -> str:
    with trainer_errors_as_ours():
        config = trainer_config.load(file, overrides)
    if as_json:
        return msgspec.json.format(msgspec.json.encode(trainer_config.as_dict(config)), indent=2).decode()
    return toml(config)


def explain(file: Path | None, overrides: Sequence[str], *, as_json: bool) -> str:
    """Return text or JSON about how the trainer handles each key that the user wrote.

    A key is honoured, translated, ignored, refused or unknown.
    """
    with trainer_errors_as_ours():
        reports = trainer_config.explain(file, overrides)
    if as_json:
        return document(reports).json().decode()
    return "\n".join(map(_key_line, reports)) or (
        "no key is set beside those of the registry function: `config show` prints them"
        if any(word.startswith("--module") for word in overrides)
        else "no key is set: every value is the default"
    )


def diff(a: Path, b: Path, overrides: Sequence[str], *, as_json: bool) -> str:
    """Return the keys whose resolved values differ between two files or two runs, as a table or as JSON text."""
    with trainer_errors_as_ours():
        before, after = (dict(settings({"config": _resolved(source, overrides)})) for source in (a, b))
    # Two files always differ in their own path.
    keys = [key for key in before | after if key != FILE_FLAG and before.get(key) != after.get(key)]
    rows = [(key, before.get(key), after.get(key)) for key in keys]
    if as_json:
        differences = [{"key": key, "a": x, "b": y} for key, x, y in rows]
        return msgspec.json.format(msgspec.json.encode({"differences": differences}), indent=2).decode()
    if not rows:
        return "both have the same configuration"
    widths = [max(len(str(row[i])) for row in rows) for i in (0, 1)]
    return "\n".join(f"{key:<{widths[0]}}   {x!s:<{widths[1]}} → {y}" for key, x, y in rows)


def _resolved(source: Path, overrides: Sequence[str]) -> dict[str, object]:
    if source.is_dir():
        return _run_config(source)
    return trainer_config.as_dict(trainer_config.load(source, overrides))


def _run_config(folder: Path) -> dict[str, object]:
    """Return the configuration of the run in a folder, from its run.json.

    Raises:
        UsageProblem: The folder has no run of our trainer.
    """
    config = discover(folder).manifest().get("config")
    if not isinstance(config, dict):
        raise UsageProblem(
            f"{folder} holds no run.json with a configuration", "give a TOML file or the folder of a run"
        )
    return config


def _key_line(report: trainer_config.KeyReport) -> str:
    """Return a line of text about one key, such as `✓ honoured training.steps = 10 (line 3)`."""
    source = f" (from {report.source})" if report.source and report.source != report.key else ""
    line = f"   (line {report.line})" if report.line else ""
    meant = "Instead: {}." if report.refused else "Did you mean {}?"
    suggestion = f" {meant.format(report.suggestion)}" if report.suggestion else ""
    why = f"\n    {report.reason}.{suggestion}" if report.reason else ""
    sign, cls = (REFUSED_SIGN, "refused") if report.refused else (SIGNS[report.cls], report.cls)
    return f"{sign} {cls:<11} {report.key} = {report.value!r}{source}{line}{why}"


def next_step(report: trainer_config.KeyReport) -> str:
    """Return the advice about a refused or unknown key, for the finding about this key."""
    if report.refused:
        return report.suggestion or "remove the key"
    guess = f"if you meant {report.suggestion}, write that; otherwise remove the key"
    return guess if report.suggestion else "remove the key, or correct its name"


def written(report: trainer_config.KeyReport) -> str:
    """Return a key as the user wrote it, with its line: `comm.mode = 'x' (line 8)`; an unknown key has no value."""
    line = f" (line {report.line})" if report.line else ""
    return f"{report.key} = {report.value!r}{line}" if report.refused else f"{report.key}{line}"


def document(reports: Sequence[trainer_config.KeyReport]) -> Report[ConfigData]:
    """Return the report for `config explain --json`, on how each key is handled.

    Unknown keys are errors. Refused keys are errors too, because the training would have another result without them.
    """
    findings = ranked(
        Finding(
            id=f"config.{'refused' if report.refused else 'unknown'}.{report.key}",
            severity=Severity.ERROR,
            title=f"the trainer {'does not support' if report.refused else 'does not know the key'}"
            f" {report.source or written(report)}",
            why=f"{report.reason}" if report.refused else "`workbench config keys` lists all keys.",
            next=next_step(report),
            confidence=1.0,
        )
        for report in reports
        if report.refused or report.cls == "unknown"
    )
    classes = ["refused" if report.refused else report.cls for report in reports]
    counts = {cls: classes.count(cls) for cls in [*SIGNS, *(["refused"] if "refused" in classes else [])]}
    sentence = f"{len(reports)} keys: " + ", ".join(f"{count} {cls}" for cls, count in counts.items())
    return Report(
        schema="workbench.config/1",
        inputs=[],
        verdict=Verdict(status=status_of(findings), kind="config", sentence=sentence, confidence=1.0),
        findings=findings,
        data=ConfigData([report.as_json() for report in reports]),
    )
