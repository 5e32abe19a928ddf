"""Check before a launch that torchtitan can be imported and accepts its options, and read its settings."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from analyzers.errors import InputError
from workbench.errors import UsageProblem
from workbench.launch.torchtitan.installed import Torchtitan, package_version, pip
from workbench.launch.torchtitan.resolved_config import MARK
from workbench.python_path import command, environment

_PATIENCE_S = 300.0
_BOX = "│╭╰─╮╯ "
_TESTED_TORCH = "2.13"
"""The version of torch with which torchtitan 0.2.2 is known to work."""


class Settings(msgspec.Struct):
    """The settings of a torchtitan job that the launcher needs.

    `mode` is torchtitan's `comm.mode`, and `assets` the folder of the tokenizer. `device` is the type of the
    accelerator that torchtitan finds on this machine; None if it finds only the CPU.
    """

    dump_folder: str
    init_timeout_s: float
    train_timeout_s: float
    mode: str = "default"
    assets: str | None = None
    device: str | None = None


class Failure(msgspec.Struct):
    """Why torchtitan did not return a configuration: `failed` names the step, "import", "options" or "config".

    `name` is the module that could not be imported, if known.
    """

    failed: str
    message: str = ""
    name: str | None = None


def resolved_settings(found: Torchtitan, options: tuple[str, ...]) -> Settings:
    """Return the settings that torchtitan itself derives from its options, its TOML file and its defaults.

    They are read in a child process, which imports torchtitan.

    Raises:
        UsageProblem: torchtitan does not accept the options.
        InputError: torchtitan cannot be imported, or gave no answer.
    """
    words = command("workbench.launch.torchtitan.resolved_config", *options)
    # Columns: the messages of a narrow terminal would be cut into lines.
    settings = environment() | {"COLUMNS": "1000", "NO_COLOR": "1"}
    try:
        ended = subprocess.run(
            words, env=settings, capture_output=True, text=True, check=False, timeout=_PATIENCE_S, errors="replace"
        )
    except subprocess.TimeoutExpired as error:
        why = f"{found.name} did not read its configuration within {_PATIENCE_S:.0f} s"
        raise InputError(why, "try it alone: python -c 'import torchtitan.train'") from error
    line = next((line for line in ended.stdout.splitlines() if line.startswith(MARK)), None)
    if line is None:
        tail = ended.stderr.strip().splitlines()[-1:] or [f"exit status {ended.returncode}"]
        raise InputError(f"{found.name} ended while it was imported: {tail[0]}", "python -c 'import torchtitan.train'")
    return converted(found, line.removeprefix(MARK), ended.stderr + ended.stdout)


def converted(found: Torchtitan, answer: str, output: str) -> Settings:
    """Return the settings in `answer`, the JSON line that the child process prints; `output` is its other output.

    Raises:
        WorkbenchError: The JSON line says that a step failed.
    """
    if '"failed"' not in answer:
        return msgspec.json.decode(answer, type=Settings)
    failure = msgspec.json.decode(answer, type=Failure)
    if failure.failed == "import":
        raise import_error(found, failure)
    if failure.failed == "options":
        what, *advice = [*_box_lines(output), f"{found.name} does not accept these options"]
        raise UsageProblem(f"{found.name}: {what}", _hint_of(advice))
    hint = "correct the option that the message names; --dry-run checks the options without starting the job"
    raise UsageProblem(f"{found.name} made no configuration: {failure.message}", hint)


def import_error(found: Torchtitan, failure: Failure) -> InputError:
    """Return the error for a torchtitan that cannot be imported: a missing package, or the wrong torch."""
    if failure.message.startswith("No module named") and failure.name:
        package = failure.name.partition(".")[0]
        return InputError(f"{found.name} cannot be imported: {failure.message}", pip([package]))
    torch = package_version("torch")
    fit = f"{pip([f'torch=={_TESTED_TORCH}.*'])} fits to torchtitan 0.2.2"
    return InputError(f"{found.name} cannot be imported with torch {torch}: {failure.message}", fit)


def _box_lines(output: str) -> Iterator[str]:
    """Yield the lines of the first error message in `output`; torchtitan's option parser (tyro) prints it in a box."""
    rows = [line for line in output.splitlines() if line.startswith(("│", "╭", "╰"))]
    for row in rows:
        if row.startswith("╰"):
            return
        text = row.strip(_BOX).strip()
        if row.startswith("│") and text:
            yield text


def _hint_of(advice: list[str]) -> str:
    """Return the hint for an option that torchtitan does not know: a similar option, or where to find all options.

    `advice` has the lines of the error message of tyro, torchtitan's option parser.
    """
    options = [line.split()[0] for line in advice if line.startswith("--")]
    return f"did you mean {options[0]}?" if options else "list its options: python -m torchtitan.train --help"


def missing_assets(settings: Settings) -> str | None:
    """Return a warning if the tokenizer folder in `settings` does not exist, else None.

    The torchtitan package from PyPI does not contain such a folder.
    """
    if settings.assets is None or Path(settings.assets).exists():
        return None
    return f"warning: hf_assets_path {settings.assets} does not exist: torchtitan needs a folder with a tokenizer.json"
