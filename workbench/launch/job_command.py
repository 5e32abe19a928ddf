"""Analyse the command after `--` in `workbench launch -- COMMAND`, to decide how the ranks are started.

The command is a Python program to run once per rank, a launcher such as torchrun that starts the ranks, or another
program.
"""

import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from analyzers.errors import InputError
from workbench.errors import UsageProblem
from workbench.python_path import working_folder

PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?(?:\.exe)?")
_LAUNCHERS = frozenset(
    (
        *("torchrun", "accelerate", "accelerate-launch", "deepspeed", "composer", "colossalai", "fabric", "lightning"),
        *("horovodrun", "torchx", "ray", "mpirun", "mpiexec", "orterun", "srun", "sbatch", "tune", "axolotl", "xtuner"),
    )
)
"""The programs that start ranks themselves."""
_WRAPPERS = frozenset(
    (
        *("env", "nohup", "time", "nice", "numactl", "taskset", "stdbuf", "timeout", "uv", "conda", "poetry", "pixi"),
        "hatch",
    )
)
"""The programs that run the command in their own arguments, such as `env` and `nohup`."""
_LAUNCHER_MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands", "deepspeed.launcher"),
    *("composer.cli", "lightning.fabric.cli", "horovod.runner", "torchx"),
)
_OPTIONS_WITH_VALUE = ("-X", "-W", "--check-hash-based-pycs")
_NEEDS_RANK = re.compile(r"\binit_process_group\b|\binit_device_mesh\b|environ.{0,6}[\"'](?:LOCAL_)?RANK[\"']")
_STARTS_RANKS = re.compile(
    r"\bmp\.spawn\b|\bmultiprocessing\b|\bstart_processes\b|\belastic_launch\b|\b(?:notebook|debug)_launcher\b"
    r"|\bimport (?:pytorch_)?lightning\b|\bfrom (?:pytorch_)?lightning\b"
)
"""Matches calls and imports in the source of a script that starts its ranks itself."""
_SCRIPT_BYTES = 1 << 20


class Form(StrEnum):
    """The form of a command, which decides how the ranks of the job are started."""

    PYTHON = "python"
    """A Python program, which may be one rank of the job."""
    LAUNCHER = "launcher"
    """A launcher that starts the ranks itself."""
    OTHER = "other"
    """Any other program, such as a shell script, which may start anything."""


@dataclass(frozen=True)
class JobCommand:
    """A command that can be started: its words, its `Form`, and the source file of its Python program.

    `source` is None if the file is unknown, or the program is not Python.
    """

    words: tuple[str, ...]
    form: Form
    source: Path | None = None

    @property
    def name(self) -> str:
        return Path(self.words[0]).name

    @property
    def needs_ranks(self) -> bool:
        """Whether the program must be started once per rank: its source calls `init_process_group` or reads RANK.

        The result is False if the source starts ranks itself, for example with `mp.spawn`.
        """
        text = _source_text(self.source)
        return bool(_NEEDS_RANK.search(text)) and not _STARTS_RANKS.search(text)


def job_command(words: Sequence[str]) -> JobCommand:
    """Return the `JobCommand` for the words after `--`; a script such as `train.py` is run by this interpreter.

    Raises:
        UsageProblem: There are no words.
        InputError: There is no such program or script.
    """
    if not words:
        raise UsageProblem("launch: no command after --", "write it behind: workbench launch -- python train.py")
    if words[0].endswith(".py"):
        words = (sys.executable, *words)
    if shutil.which(words[0]) is None:
        raise InputError(f"{words[0]}: command not found", "check the spelling, and whether it is on PATH")
    if PYTHON.fullmatch(Path(words[0]).name):
        return python_command(tuple(words))
    names = [Path(word).name for word in words]
    # Only a wrapper's arguments can be a program: in `grep -r ray .` the word is no launcher.
    named = names if names[0] in _WRAPPERS else names[:1]
    return JobCommand(tuple(words), Form.LAUNCHER if _LAUNCHERS.intersection(named) else Form.OTHER)


def python_command(words: tuple[str, ...]) -> JobCommand:
    """Return the `JobCommand` for a Python command line, which runs a script, a module (`-m`) or code (`-c`).

    Raises:
        InputError: There is no such script.
    """
    option, program = program_of(words)
    if option == "-m":
        is_launcher = program.startswith(_LAUNCHER_MODULES)
        return JobCommand(words, Form.LAUNCHER if is_launcher else Form.PYTHON, _module_file(program))
    if option == "-c" or program in ("", "-"):
        return JobCommand(words, Form.OTHER if program in ("", "-") else Form.PYTHON)
    if not Path(program).exists():
        raise InputError(
            f"{program}: no such script", f"check the path; this folder is {working_folder() or 'removed'}"
        )
    if Path(program).name in _LAUNCHERS:
        return JobCommand(words, Form.LAUNCHER)
    return JobCommand(words, Form.PYTHON, Path(program))


def program_of(words: Sequence[str]) -> tuple[str, str]:
    """Return what a Python command line runs: ("-m", module), ("-c", code) or ("", script).

    If it runs nothing, the result is ("", "").

    >>> program_of(["python", "-X", "dev", "-um", "package.train", "--lr", "1"])
    ('-m', 'package.train')
    """
    position = 1
    while position < len(words):
        word = words[position]
        if not word.startswith("-") or word == "-":
            return "", word
        if not word.startswith("--") and word[-1] in "mc":
            return f"-{word[-1]}", words[position + 1] if position + 1 < len(words) else ""
        position += 2 if word in _OPTIONS_WITH_VALUE else 1
    return "", ""


def _module_file(module: str) -> Path | None:
    """Return the source file of a module, or of a package's `__main__`; None if it is not in the working folder."""
    home = Path(*module.split("."))
    return next((path for path in (home.with_suffix(".py"), home / "__main__.py") if path.is_file()), None)


def _source_text(path: Path | None) -> str:
    """Return the first mebibyte of a source file as text; empty if there is no file or it cannot be read."""
    try:
        return path.read_bytes()[:_SCRIPT_BYTES].decode(errors="replace") if path and path.is_file() else ""
    except OSError:
        return ""
