"""Ask the person before a proof starts anything: a run folder may come from anywhere, and gives no orders."""

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from analyzers import cache
from analyzers.errors import InputError
from workbench.console import note
from workbench.errors import UsageProblem
from workbench.remote.urls import is_url, local_part

_NAMES_CODE = ("import", "module", "path", "folder")
"""Parts of the names of settings whose values are code that is imported, or files that are read."""


@dataclass(frozen=True)
class Permission:
    """What the person has allowed a proof to start.

    `command` has the words after `--` on the command line: the person's own command, which needs no further question.
    `yes` is true with `--yes`: what the run folder names may be started without a question.
    """

    command: tuple[str, ...] = ()
    yes: bool = False

    def require(self, words: Sequence[str], config: Mapping[str, object] | None = None) -> None:
        """Print the exact command that would be started, and return only if the person allows it.

        `config` is the configuration that the command reads, if it comes from the run: its settings that name code or
        files are printed, too.

        Raises:
            UsageProblem: The person said no, or cannot be asked because there is no terminal.
        """
        note(f"--prove would start this command, which comes from the run folder:\n  {_shown(shlex.join(words))}")
        for line in _named_by(config or {}):
            note(f"  with {line}")
        if self.yes:
            return
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageProblem(
                "--prove starts nothing that a run folder names without a person's permission",
                "read the command above, and add --yes; or give a command of your own: --prove -- COMMAND...",
            )
        print("Start it? [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise UsageProblem("--prove: nothing was started", "give a command of your own: --prove -- COMMAND...")


def _named_by(config: Mapping[str, object]) -> Iterator[str]:
    """Yield the settings of a configuration, {section: {key: value}}, that name code or files, as `key = value`."""
    for section, keys in config.items():
        for key, value in keys.items() if isinstance(keys, dict) else ():
            if value and isinstance(value, str | list) and any(part in str(key) for part in _NAMES_CODE):
                yield _shown(f"{section}.{key} = {value}")


def _shown(text: str) -> str:
    """Return a text with every character that could be invisible, or change the terminal, as its code."""
    return "".join(sign if sign.isprintable() else ascii(sign)[1:-1] for sign in text)


def refuse_foreign(sources: Sequence[str]) -> None:
    """Refuse to prove a run that is not in a folder of this machine: one behind a URL, or a copy of it in the cache.

    Raises:
        InputError: A source is such a run.
    """
    for source in sources:
        if (is_url(source) and local_part(source) is None) or _is_in_cache(Path(local_part(source) or source)):
            raise InputError(
                "--prove: a run that was fetched or dropped is only read, never started again",
                "copy it to a folder of yours, read its run.json, and give the command: --prove -- COMMAND...",
            )


def _is_in_cache(path: Path) -> bool:
    folder = cache.cache_folder()
    return folder is not None and path.resolve().is_relative_to(folder.resolve())
