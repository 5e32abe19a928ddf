"""Change the batch size on the command line of a user's job, to run it again after a failed allocation."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from workbench.commands.prove.recorded_run import RecordedRun
from workbench.proof_data import Settings

_BATCH_FLAG = re.compile(
    r"--?(?:(?:local|train|micro|per_device(?:_train)?|per_gpu(?:_train)?|device|train_micro)_)?batch_?size|--?bs"
)
"""Matches flags that set a batch size, with underscores in place of the dashes within their names."""


def batch_flag(command: Sequence[str]) -> tuple[int, str, int] | None:
    """Return (index of the word with the batch size, its flag, the batch size) in the words of a command.

    Return None if no known flag for the batch size has a number larger than 1.

    >>> batch_flag(["python", "train.py", "--batch-size", "32"])
    (3, '--batch-size', 32)
    >>> batch_flag(["train.py", "--per_device_train_batch_size=8"])
    (1, '--per_device_train_batch_size', 8)
    """
    for position, word in enumerate(command):
        flag, equals, value = word.partition("=")
        if not _BATCH_FLAG.fullmatch("--" + flag.lstrip("-").replace("-", "_")) or not flag.startswith("-"):
            continue
        at = position if equals else position + 1
        text = value if equals else command[at] if at < len(command) else ""
        if text.isdecimal() and int(text) > 1:
            return at, flag, int(text)
    return None


def script_changes(command: Sequence[str]) -> Iterator[Settings]:
    """Yield changes of a user's command to smaller batches (a half, a quarter and so on), as {flag: batch size}."""
    named = batch_flag(command)
    batch = named[2] if named else 1
    while named and (batch := batch // 2):
        yield {named[1]: batch}


def changed_command(run: RecordedRun, change: Settings, folder: Path) -> list[str]:
    """Return the user's command with the changed batch size, and with the run's folder replaced by `folder`."""
    words = list(run.command)
    if named := batch_flag(words):
        at, flag, _ = named
        words[at] = f"{flag}={change[flag]}" if "=" in words[at] else str(change[flag])
    return [moved(word, run.folder, folder) for word in words]


def moved(word: str, old: Path, new: Path) -> str:
    """Return a word of a command; if it is a path in the folder `old`, this folder is replaced by `new`.

    A flag such as `--out=PATH` may come before the path.
    """
    flag, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(value).resolve() if value else None
    if path is None or not path.is_relative_to(old.resolve()):
        return word
    return f"{flag}{equals}{new / path.relative_to(old.resolve())}"


def process_options(run: RecordedRun, folder: Path) -> list[str]:
    """Return the options of `workbench launch` for a person's own command: only the number of processes is recorded."""
    number = next((after for word, after in pairwise(_recorded_options(run)) if word == "--nproc"), "")
    return [*(("--nproc", number) if number.isdecimal() else ()), "--job.dump_folder", str(folder)]


def _recorded_options(run: RecordedRun) -> list[str]:
    """Return the options of `workbench launch` that started the first run."""
    argv = run.manifest.get("argv")
    words = [word for word in (argv if isinstance(argv, list) else []) if isinstance(word, str)]
    return words[words.index("launch") + 1 : words.index("--")] if "launch" in words and "--" in words else []


def launch_options(run: RecordedRun, folder: Path) -> list[str]:
    """Return the options of `workbench launch` that start the first run again, but with its outputs in `folder`."""
    given = _recorded_options(run)
    kept: list[str] = []
    for before, word in pairwise(["", *given]):
        own = word.startswith("--job.dump_folder=") or word in ("--no-watch", "--job.dump_folder")
        if not own and before != "--job.dump_folder":
            kept.append(word)
    return [*kept, "--job.dump_folder", str(folder)]
