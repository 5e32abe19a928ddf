"""Run a module of the trainer in another process, and read the JSON that it prints, such as an estimate of memory."""

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import TypeVar

import msgspec

from analyzers.errors import MissingExtra
from workbench.errors import UsageProblem
from workbench.python_path import command

Answer = TypeVar("Answer")


def ask_trainer(module: str, arguments: Sequence[str], kind: type[Answer], environment: Mapping[str, str]) -> Answer:
    """Run `python -m MODULE ARGUMENTS`, and return the JSON that it prints, decoded as type `kind`.

    Raises:
        UsageProblem: The trainer reports an error, such as a wrong key.
        MissingExtra: torch is not installed.
    """
    done = subprocess.run(
        command(module, *arguments),
        env=os.environ | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return msgspec.json.decode(done.stdout, type=kind)
    if "No module named 'torch'" in done.stderr:
        raise MissingExtra("this needs torch", "pip install 'torch-workbench[train]'")
    message, _, hint = done.stderr.partition("error: ")[2].partition("\nhint: ")
    raise UsageProblem(message or done.stderr.strip()[-300:], hint.strip() or "try it with `workbench config explain`")
